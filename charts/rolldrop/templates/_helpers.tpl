{{- define "rolldrop.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "rolldrop.fullname" -}}
{{- $name := include "rolldrop.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rolldrop.selectorLabels" -}}
app.kubernetes.io/name: {{ include "rolldrop.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rolldrop.labels" -}}
{{ include "rolldrop.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "rolldrop.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rolldrop.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "rolldrop.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* True if the run creates anything that uses its image: manifests, the sidecar, or load workers. */}}
{{- define "rolldrop.creates" -}}
{{- $spec := .Values.scenario.spec -}}
{{- if or $spec.manifests (dig "sidecar" "inject" false $spec) (eq (include "rolldrop.loadFrom" .) "cluster") -}}
true
{{- end -}}
{{- end -}}

{{/* The nodes that the scenario drains, as a JSON list. */}}
{{- define "rolldrop.drained" -}}
{{- $nodes := list -}}
{{- range .Values.scenario.spec.disruptions -}}
{{- if eq .action "drain" -}}
{{- $nodes = append $nodes .node -}}
{{- end -}}
{{- end -}}
{{- $nodes | uniq | toJson -}}
{{- end -}}

{{/* The given affinity, which also avoids the nodes to drain: on them, the run would evict itself. */}}
{{- define "rolldrop.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- $nodes := include "rolldrop.drained" . | fromJsonArray -}}
{{- if $nodes -}}
{{- /* API servers accept only one value in each requirement for a field. */ -}}
{{- $off := list -}}
{{- range $nodes -}}
{{- $off = append $off (dict "key" "metadata.name" "operator" "NotIn" "values" (list .)) -}}
{{- end -}}
{{- $node := get $affinity "nodeAffinity" | default dict -}}
{{- $required := get $node "requiredDuringSchedulingIgnoredDuringExecution" | default dict -}}
{{- $terms := list -}}
{{- range get $required "nodeSelectorTerms" | default (list dict) -}}
{{- $terms = append $terms (set (deepCopy .) "matchFields" (concat (get . "matchFields" | default list) $off)) -}}
{{- end -}}
{{- $_ := set $required "nodeSelectorTerms" $terms -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" $required -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- with $affinity -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* The JobSpec that the Job and the CronJob share. */}}
{{- define "rolldrop.jobSpec" -}}
backoffLimit: 0
activeDeadlineSeconds: {{ .Values.activeDeadlineSeconds }}
template:
  metadata:
    labels:
      {{- include "rolldrop.selectorLabels" . | nindent 6 }}
      {{- with .Values.podLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with .Values.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    restartPolicy: Never
    serviceAccountName: {{ include "rolldrop.serviceAccountName" . }}
    automountServiceAccountToken: true
    terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
    {{- with .Values.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.podSecurityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.priorityClassName }}
    priorityClassName: {{ . }}
    {{- end }}
    {{- with .Values.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with include "rolldrop.affinity" . }}
    affinity:
      {{- . | nindent 6 }}
    {{- end }}
    containers:
      - name: rolldrop
        image: {{ include "rolldrop.image" . | quote }}
        imagePullPolicy: {{ .Values.image.pullPolicy }}
        args:
          - run
          - /scenario/scenario.yaml
          - --in-cluster
          {{- with .Values.namespace }}
          - --namespace={{ . }}
          {{- end }}
          - --yes
          {{- if not .Values.beats }}
          - --no-beats
          {{- end }}
          {{- if include "rolldrop.creates" . }}
          - --image={{ include "rolldrop.image" . }}
          {{- end }}
          - --out=/results/$(POD_NAME)
          - --format={{ .Values.format }}
          {{- with .Values.extraArgs }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        env:
          - name: POD_NAME
            valueFrom: {fieldRef: {fieldPath: metadata.name}}
          {{- with .Values.env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        {{- with .Values.securityContext }}
        securityContext:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- with .Values.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        volumeMounts:
          - {name: scenario, mountPath: /scenario, readOnly: true}
          - {name: results, mountPath: /results}
    volumes:
      - name: scenario
        configMap: {name: {{ include "rolldrop.fullname" . }}}
      - name: results
        {{- if .Values.results.persistent }}
        persistentVolumeClaim: {claimName: {{ .Values.results.existingClaim | default (include "rolldrop.fullname" .) }}}
        {{- else }}
        emptyDir: {sizeLimit: {{ .Values.results.size }}}
        {{- end }}
{{- end -}}
