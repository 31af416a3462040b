#!/usr/bin/env bash
# Builds the local cluster's programs from pinned Go modules, once, into a cache outside the checkout.
#
#   build.sh DIR [NAME...]    builds what DIR lacks (all programs, or those named) and prints progress
#
# A program is rebuilt when the go.mod or go.sum that pins it changes: the stamp beside it holds their digest.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: build.sh DIR [NAME...]}; shift
mkdir -p "$out"; out=$(cd "$out" && pwd)

kubernetes_version=$(awk '$1 == "k8s.io/kubernetes" && $2 ~ /^v/ {print $2; exit}' "$here/kubernetes/go.mod")
minor=$(cut -d. -f2 <<<"$kubernetes_version")
stamp="-X k8s.io/component-base/version.gitVersion=$kubernetes_version -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"

# Prometheus v3.N.P is published as module version v0.3NN.P.
prometheus_stamp="-X github.com/prometheus/common/version.Version=$(awk '$1 == "github.com/prometheus/prometheus" {print $2; exit}' "$here/prometheus/go.mod")"

# name|module folder|package|ldflags|tags
programs=(
  "kube-apiserver|kubernetes|k8s.io/kubernetes/cmd/kube-apiserver|$stamp|"
  "kube-controller-manager|kubernetes|k8s.io/kubernetes/cmd/kube-controller-manager|$stamp|"
  "kube-scheduler|kubernetes|k8s.io/kubernetes/cmd/kube-scheduler|$stamp|"
  "kubelet|kubernetes|k8s.io/kubernetes/cmd/kubelet|$stamp|"
  "kube-proxy|kubernetes|k8s.io/kubernetes/cmd/kube-proxy|$stamp|"
  "kubectl|kubernetes|k8s.io/kubernetes/cmd/kubectl|$stamp|"
  "etcd|etcd|go.etcd.io/etcd/server/v3||"
  "helm|helm|helm.sh/helm/v4/cmd/helm||"
  "coredns|coredns|.||"
  "pause|pause|.||"
  "prometheus|prometheus|github.com/prometheus/prometheus/cmd/prometheus|$prometheus_stamp|remove_all_sd,enable_kubernetes_sd"
)

digest_of() { # MODULE
  find "$here/$1" -maxdepth 1 \( -name 'go.*' -o -name '*.go' \) -print0 | sort -z | xargs -0 cat | sha256sum | cut -c1-16
}
is_current() { # NAME MODULE
  [[ -x $out/$1 && $(cat "$out/.$1.stamp" 2>/dev/null) == "$(digest_of "$2")" ]]
}

wanted=" $* "
stale=()
for program in "${programs[@]}"; do
  IFS='|' read -r name module _ <<<"$program"
  [[ $# -eq 0 || $wanted == *" $name "* ]] || continue
  is_current "$name" "$module" || stale+=("$program")
done
[[ ${#stale[@]} -gt 0 ]] || exit 0

# Two builds of the same cache would only slow each other down: the second waits, then finds everything built.
exec 9>"$out/.lock"
flock --nonblock 9 || { echo "another build is filling $out; waiting for it"; flock 9; }

number=0
for program in "${stale[@]}"; do
  IFS='|' read -r name module package ldflags tags <<<"$program"
  number=$((number + 1))
  is_current "$name" "$module" && continue
  printf '[%d/%d] building %s ... ' "$number" "${#stale[@]}" "$name"
  started=$SECONDS
  # Without cgo throughout: static binaries, and one build cache that all the programs share.
  (cd "$here/$module" && CGO_ENABLED=0 GOWORK=off go build -mod=readonly -trimpath -tags "$tags" -ldflags "-s -w $ldflags" -o "$out/$name.new" "$package") \
    2> >(grep -v '^go: downloading ' >&2)
  mv "$out/$name.new" "$out/$name"
  digest_of "$module" >"$out/.$name.stamp"
  echo "$((SECONDS - started)) s"
done
