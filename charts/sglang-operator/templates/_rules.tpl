{{/* The operator's rights, the same in a ClusterRole and in a Role. Each verb has a call that needs it. */}}
{{- define "sglang-operator.rules" -}}
# The desired state: watched, and read at each pass.
- apiGroups: [serving.sglang-operator.io]
  resources: [inferenceservices]
  verbs: [get, list, watch]
# The observed state: one server-side apply when it changed.
- apiGroups: [serving.sglang-operator.io]
  resources: [inferenceservices/status]
  verbs: [patch]
# Children name their InferenceService as owner and block its foreground deletion. Where the admission plug-in
# OwnerReferencesPermissionEnforcement is on (OpenShift), that takes this right. The operator sets no finalizer.
- apiGroups: [serving.sglang-operator.io]
  resources: [inferenceservices/finalizers]
  verbs: [update]
# Children. A server-side apply is a patch, and a create when the object isn't there yet. Only Deployments change by
# themselves in ways that matter, and are watched.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, create, patch, delete]
# Pods are read for the status and asked over HTTP; they are the Deployment's to make and delete.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# For `kubectl describe`.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if .Values.rbac.readSecrets }}
# API keys of servers, by the names in their pods.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- end }}
