{{/* Name of the chart, or what replaces it. */}}
{{- define "sglang-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{/* Name of objects. 53 letters at most, as a release's own, which leaves room for suffixes. */}}
{{- define "sglang-operator.fullname" -}}
{{- $name := include "sglang-operator.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride }}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Labels that select the operator's pod. A Deployment's selector can't change: keep them as they are. */}}
{{- define "sglang-operator.selectorLabels" -}}
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/name: {{ include "sglang-operator.name" . }}
{{- end }}

{{/*
Metadata of an object. Takes a dict: root, name; optional: namespace, component, labels, annotations.
The standard labels win over further ones, so that no value can break a selector.
*/}}
{{- define "sglang-operator.metadata" -}}
{{- $root := .root -}}
{{- $standard := dict
  "app.kubernetes.io/component" (default "operator" .component)
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/managed-by" $root.Release.Service
  "app.kubernetes.io/name" (include "sglang-operator.name" $root)
  "app.kubernetes.io/part-of" $root.Chart.Name
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- merge dict $standard (default dict .labels) $root.Values.commonLabels | toYaml | nindent 2 }}
{{- with merge dict (default dict .annotations) $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "sglang-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "sglang-operator.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "sglang-operator.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "sglang-operator.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
{{- end }}

{{- define "sglang-operator.podSecurityContext" -}}
{{- merge (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) .Values.podSecurityContext | toYaml }}
{{- end }}

{{/* Port of Prometheus by its address. */}}
{{- define "sglang-operator.prometheusPort" -}}
{{- $url := urlParse .Values.prometheus.url -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- default (ternary "443" "80" (eq $url.scheme "https")) $port }}
{{- end }}

{{/* Values that contradict each other. Each sentence names the values and the way out. */}}
{{- define "sglang-operator.validate" -}}
{{- if eq .Values.image.tag "latest" }}
{{- fail "image.tag must not be latest: name a version, or set image.digest" }}
{{- end }}
{{- if eq (int .Values.healthPort) (int .Values.metrics.port) }}
{{- fail (printf "healthPort and metrics.port must differ; both are %d" (int .Values.healthPort)) }}
{{- end }}
{{- if and (eq .Values.prometheus.bearerToken.from "Secret") (not .Values.prometheus.bearerToken.secretName) }}
{{- fail "prometheus.bearerToken.secretName must be set when prometheus.bearerToken.from is Secret" }}
{{- end }}
{{- if and (ne .Values.prometheus.bearerToken.from "Secret") .Values.prometheus.bearerToken.secretName }}
{{- fail "prometheus.bearerToken.from must be Secret when prometheus.bearerToken.secretName is set" }}
{{- end }}
{{- if and .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled }}
{{- fail "metrics.podMonitor.enabled and metrics.serviceMonitor.enabled must not both be true: each sample would count twice" }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.service.enabled) }}
{{- fail "metrics.service.enabled must be true when metrics.serviceMonitor.enabled is" }}
{{- end }}
{{- end }}
