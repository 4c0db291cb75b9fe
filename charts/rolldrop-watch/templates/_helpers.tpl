{{- define "watch.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "watch.fullname" -}}
{{- .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name (include "watch.name" .)) (contains (include "watch.name" .) .Release.Name)) | trunc 48 | trimSuffix "-" -}}
{{- end -}}

{{- define "watch.selectorLabels" -}}
app.kubernetes.io/name: {{ include "watch.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "watch.labels" -}}
{{ include "watch.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "watch.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "watch.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* The ConfigMap that the beats are written to. */}}
{{- define "watch.beats" -}}
{{- printf "%s-beats" (include "watch.fullname" .) -}}
{{- end -}}

{{/* The permissions to watch terminations, as docs/watch.md lists them. Nodes are no part of a namespace. */}}
{{- define "watch.rules" -}}
- {apiGroups: [""], resources: [pods, events{{ if not .Values.namespace }}, nodes{{ end }}], verbs: [list, watch]}
- {apiGroups: [apps], resources: [deployments, statefulsets, daemonsets, replicasets], verbs: [list, watch]}
{{- if .Values.logs }}
- {apiGroups: [""], resources: [services], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
{{- end }}
{{- if .Values.events }}
- {apiGroups: [""], resources: [events], verbs: [create]}
{{- end }}
{{- end -}}

{{/* The namespaces of these sources, such as gateways, as a JSON list. */}}
{{- define "watch.namespacesOf" -}}
{{- $namespaces := list -}}
{{- range . -}}
{{- $namespaces = append $namespaces (splitList "/" . | first) -}}
{{- end -}}
{{- $namespaces | uniq | toJson -}}
{{- end -}}
