{{/*
The rules of the Role, as JSON: only what the scenario needs. They match the calls that
`rolldrop run --dry-run` lists; tests/it/chart.rs compares the two.
*/}}
{{- define "rolldrop.rules" -}}
{{- $spec := .Values.scenario.spec -}}
{{- $rules := list
  (dict "apiGroups" (list "") "resources" (list "pods" "events") "verbs" (list "list" "watch"))
  (dict "apiGroups" (list "discovery.k8s.io") "resources" (list "endpointslices") "verbs" (list "list" "watch"))
  (dict "apiGroups" (list "apps") "resources" (list "deployments" "replicasets" "statefulsets" "daemonsets") "verbs" (list "list" "watch"))
-}}

{{- $ownServices := list -}}
{{- $hasOwnWorkload := false -}}
{{- $ownWorkloads := list -}}
{{- $hasProxies := .Values.rbac.proxies -}}
{{- range $spec.manifests -}}
{{- if not .inline -}}
{{- fail "scenario.spec.manifests: the chart cannot read manifests from files: write each as {inline: {...}}" -}}
{{- end -}}
{{- $name := .inline.metadata.name -}}
{{- with .inline.metadata.namespace -}}
{{- if ne . ($.Values.namespace | default $.Release.Namespace) -}}
{{- fail (printf "scenario.spec.manifests: %s is for namespace %s, but the run's permissions are for another: omit its namespace" $name .) -}}
{{- end -}}
{{- end -}}
{{- $group := contains "/" .inline.apiVersion | ternary (splitList "/" .inline.apiVersion | first) "" -}}
{{- $resource := list (include "rolldrop.plural" .inline.kind) -}}
{{- $rules = append $rules (dict "apiGroups" (list $group) "resources" $resource "verbs" (list "create")) -}}
{{- $rules = append $rules (dict "apiGroups" (list $group) "resources" $resource "resourceNames" (list $name) "verbs" (ternary (list "delete") (list "get" "delete") (eq .inline.kind "Secret"))) -}}
{{- if eq .inline.kind "Service" -}}
{{- $ownServices = append $ownServices $name -}}
{{- end -}}
{{- if dig "spec" "template" false .inline -}}
{{- $hasOwnWorkload = true -}}
{{- $ownWorkloads = append $ownWorkloads (printf "%s/%s" (include "rolldrop.plural" .inline.kind) $name) -}}
{{- end -}}
{{- if contains "rolldrop-admin" (toJson .inline) -}}
{{- $hasProxies = true -}}
{{- end -}}
{{- end -}}

{{- $services := list -}}
{{- $hasOthersService := false -}}
{{- range kindIs "slice" $spec.target | ternary $spec.target (list $spec.target) -}}
{{- with .service -}}
{{- $services = append $services . -}}
{{- if not (has . $ownServices) -}}
{{- $hasOthersService = true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $services -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "services") "resourceNames" (uniq .) "verbs" (list "get")) -}}
{{- end -}}

{{- if dig "sidecar" "inject" false $spec -}}
{{- $hasProxies = true -}}
{{- $rules = append $rules (dict "apiGroups" (list "networking.k8s.io") "resources" (list "networkpolicies") "verbs" (list "list")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "secrets") "verbs" (list "create" "delete")) -}}
{{- $hasOthersWorkload := false -}}
{{- range dig "sidecar" "workloads" list $spec -}}
{{- $parts := splitList "/" . -}}
{{- if not (has (printf "%s/%s" (include "rolldrop.workloads" (first $parts)) (last $parts)) $ownWorkloads) -}}
{{- $hasOthersWorkload = true -}}
{{- end -}}
{{- end -}}
{{- if or $hasOthersService $hasOthersWorkload (not $hasOwnWorkload) -}}
{{- if not (or $hasOthersService $hasOthersWorkload) -}}
{{- $rules = append $rules (dict "apiGroups" (list "networking.k8s.io") "resources" (list "ingresses") "verbs" (list "list")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "gateway.networking.k8s.io") "resources" (list "httproutes") "verbs" (list "list")) -}}
{{- end -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "services") "verbs" (list "list" "get" "patch")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "apps") "resources" (list "deployments" "statefulsets" "daemonsets") "verbs" (list "get" "patch")) -}}
{{- end -}}
{{- end -}}
{{- if $hasProxies -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "pods/proxy") "verbs" (list "get")) -}}
{{- end -}}

{{- if eq (include "rolldrop.loadFrom" .) "cluster" -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "secrets") "verbs" (list "create" "patch" "delete")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "batch") "resources" (list "jobs") "verbs" (list "create" "get" "delete")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "pods/proxy") "verbs" (list "get" "create")) -}}
{{- end -}}

{{/* A ConfigMap with a unique name owns everything that the run creates, and receives the beats. */}}
{{- if .Values.beats -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "configmaps") "verbs" (list "create" "get" "patch" "delete")) -}}
{{- else if include "rolldrop.creates" . -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "configmaps") "verbs" (list "create" "get" "delete")) -}}
{{- end -}}

{{- range $spec.disruptions -}}
{{- if and (has .action (list "deletePod" "evict" "relabel" "drain")) (not .allowOutage) -}}
{{- $rules = append $rules (dict "apiGroups" (list "policy") "resources" (list "poddisruptionbudgets") "verbs" (list "list")) -}}
{{- end -}}
{{- if eq .action "deletePod" -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "pods") "verbs" (list "delete")) -}}
{{- else if eq .action "evict" -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "pods/eviction") "verbs" (list "create")) -}}
{{- else if eq .action "relabel" -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "pods") "verbs" (list "get" "patch")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "services") "verbs" (list "list")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "apps") "resources" (list "replicasets") "verbs" (list "list")) -}}
{{- else if has .action (list "rollingRestart" "setImage" "scale") -}}
{{- $parts := splitList "/" (.workload | required (printf "scenario.spec.disruptions: %s needs a workload, such as deployment/web" .action)) -}}
{{- $resource := include "rolldrop.workloads" (first $parts) | required (printf "scenario.spec.disruptions: %q is not a workload: use deployment/NAME, statefulset/NAME or daemonset/NAME" .workload) -}}
{{- $rules = append $rules (dict "apiGroups" (list "apps") "resources" (list $resource) "resourceNames" (list (last $parts)) "verbs" (list "get" "patch")) -}}
{{- else if eq .action "patch" -}}
{{- $object := .object | required "scenario.spec.disruptions: patch needs an object: {apiVersion, kind, name}" -}}
{{- $group := contains "/" $object.apiVersion | ternary (splitList "/" $object.apiVersion | first) "" -}}
{{- $rules = append $rules (dict "apiGroups" (list $group) "resources" (list (include "rolldrop.plural" $object.kind)) "resourceNames" (list $object.name) "verbs" (list "get" "patch")) -}}
{{- else if has .action (list "crash" "nodeShutdown" "restartNodeAgent") -}}
{{- fail (printf "scenario.spec.disruptions: %s is for the embedded cluster: Kubernetes has no call for it" .action) -}}
{{- else if eq .action "exec" -}}
{{- fail "scenario.spec.disruptions: exec needs a program, and the image has none" -}}
{{- else if not (has .action (list "drain" "observe")) -}}
{{- fail (printf "scenario.spec.disruptions: this chart does not know which permissions the action %s needs" .action) -}}
{{- end -}}
{{- end -}}
{{- concat ($rules | uniq) .Values.rbac.extraRules | toJson -}}
{{- end -}}

{{/* The rules of the ClusterRole, as JSON: for objects in no namespace or in all namespaces. */}}
{{- define "rolldrop.clusterRules" -}}
{{- $rules := list -}}
{{- with include "rolldrop.drained" . | fromJsonArray -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "nodes") "resourceNames" . "verbs" (list "get" "patch")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "pods") "verbs" (list "list")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "pods/eviction") "verbs" (list "create")) -}}
{{- end -}}
{{- range .Values.scenario.spec.disruptions -}}
{{- if and (eq .action "drain") (not .allowOutage) -}}
{{- $rules = append $rules (dict "apiGroups" (list "policy") "resources" (list "poddisruptionbudgets") "verbs" (list "list")) -}}
{{- end -}}
{{- end -}}
{{- $target := .Values.scenario.spec.target -}}
{{- range kindIs "slice" $target | ternary $target (list $target) -}}
{{- with .node -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "nodes") "resourceNames" (list .) "verbs" (list "get")) -}}
{{- end -}}
{{- end -}}
{{- if .Values.rbac.clusterInfo -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "nodes") "verbs" (list "list" "watch")) -}}
{{- else if and (eq (include "rolldrop.loadFrom" .) "cluster") (not (dig "load" "job" "workers" false .Values.scenario.spec)) -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "nodes") "verbs" (list "list")) -}}
{{- end -}}
{{- concat ($rules | uniq) .Values.rbac.extraClusterRules | toJson -}}
{{- end -}}

{{/* The sender of the load: the run's own pod (local), or a Job of load workers (cluster). */}}
{{- define "rolldrop.loadFrom" -}}
{{- dig "load" "from" "local" .Values.scenario.spec -}}
{{- end -}}

{{/* The resource of a workload's kind, as in deployment/web; empty for other kinds. */}}
{{- define "rolldrop.workloads" -}}
{{- get (dict "deploy" "deployments" "deployment" "deployments" "sts" "statefulsets" "statefulset" "statefulsets" "ds" "daemonsets" "daemonset" "daemonsets") (lower .) -}}
{{- end -}}

{{/* A kind's name in paths, by the rules of English, which the tools that generate kinds follow. */}}
{{- define "rolldrop.plural" -}}
{{- $kind := lower . -}}
{{- if eq $kind "endpoints" -}}
{{- $kind -}}
{{- else if regexMatch "(s|x|z|ch|sh)$" $kind -}}
{{- $kind -}}es
{{- else if regexMatch "[^aeiou]y$" $kind -}}
{{- trimSuffix "y" $kind -}}ies
{{- else -}}
{{- $kind -}}s
{{- end -}}
{{- end -}}
