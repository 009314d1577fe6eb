{{- /* The namespaces of jobs. With a list the chart renders their objects; with a selector or `all` the operator creates the same
objects, from FERRY_NAMESPACE_OBJECTS. */}}

{{- define "ferry.chosen" -}}
{{- if or .Values.namespaces.all .Values.namespaces.selector }}yes{{ end }}
{{- end }}

{{- /* Namespaces with objects of the chart, as JSON. */}}
{{- define "ferry.listed" -}}
{{- if include "ferry.chosen" . }}[]{{ else }}{{ .Values.namespaces.list | default (list .Release.Namespace) | toJson }}{{ end }}
{{- end }}

{{- /* The selector as the API server takes it in a query. */}}
{{- define "ferry.namespaceQuery" -}}
{{- $terms := list }}
{{- range $key, $value := .Values.namespaces.selector.matchLabels }}{{ $terms = append $terms (printf "%s=%s" $key $value) }}{{ end }}
{{- range .Values.namespaces.selector.matchExpressions }}
{{- if eq .operator "Exists" }}{{ $terms = append $terms .key }}
{{- else if eq .operator "DoesNotExist" }}{{ $terms = append $terms (printf "!%s" .key) }}
{{- else }}{{ $terms = append $terms (printf "%s %s (%s)" .key (lower .operator) (join "," .values)) }}
{{- end }}
{{- end }}
{{- join "," $terms }}
{{- end }}

{{- /* Pods of jobs as a peer of a NetworkPolicy in the release's namespace, as JSON. */}}
{{- define "ferry.jobPeer" -}}
{{- $peer := dict "podSelector" (dict "matchLabels" (dict "app.kubernetes.io/managed-by" "ferry")) }}
{{- if include "ferry.chosen" . }}{{ $peer = set $peer "namespaceSelector" dict }}
{{- else if .Values.namespaces.list }}
{{- $in := dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" .Values.namespaces.list }}
{{- $peer = set $peer "namespaceSelector" (dict "matchExpressions" (list $in)) }}
{{- end }}
{{- toJson $peer }}
{{- end }}

{{- /* The namespace of the release, for a peer in a policy of another namespace. */}}
{{- define "ferry.releaseNamespace" -}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Release.Namespace | quote }}}}
{{- end }}

{{- define "ferry.clusterRole" -}}
{{- printf "%s-%s" .Release.Namespace (include "ferry.fullname" .) }}
{{- end }}

{{- /* All rights of the operator in a namespace with jobs. kube/api/rbac.py of the operator lists them; a test compares the two. */}}
{{- define "ferry.operatorRules" -}}
- apiGroups: [ferry.dev]
  resources: [streamjobs]
  verbs: [list, watch, patch, delete] # delete: by spec.ttlAfterFinished
- apiGroups: [ferry.dev]
  resources: [streamjobs/status]
  verbs: [patch]
- apiGroups: [ferry.dev]
  resources: [streamjobs/finalizers] # never called: some clusters require it from the creator of an object that a job owns
  verbs: [update]
- apiGroups: [ferry.dev]
  resources: [streamjobjournals] # created for each run of a job, never read
  verbs: [create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [secrets] # written for each job, never read
  verbs: [create, patch]
- apiGroups: [""]
  resources: [configmaps] # read by name: the program of a job, which its spec.pipeline.configMap names
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, create, patch]
{{- end }}

{{- /* Rights of drivers and of the users' code in them. No list: a driver finds the journal of its own job by its name. */}}
{{- define "ferry.driverRules" -}}
- apiGroups: [ferry.dev]
  resources: [streamjobjournals]
  verbs: [get, patch]
{{- end }}

{{- /* A RoleBinding, as an item of a list: {root, name, namespace, kind and role of its reference, subjects}. */}}
{{- define "ferry.binding" -}}
- apiVersion: rbac.authorization.k8s.io/v1
  kind: RoleBinding
  metadata:
    name: {{ .name }}
    {{- with .namespace }}
    namespace: {{ . | quote }}
    {{- end }}
    labels: {{- include "ferry.labels" .root | nindent 6 }}
      {{- if not .namespace }}
      app.kubernetes.io/component: namespace
      {{- end }}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ .kind }}, name: {{ .role }}}
  subjects: {{- toYaml .subjects | nindent 4 }}
{{- end }}

{{- /* The objects of a namespace with jobs, as a list in YAML: {root, namespace}; an empty namespace is filled in by the operator. */}}
{{- define "ferry.ofNamespace" -}}
{{- $root := .root }}
{{- $name := include "ferry.fullname" $root }}
{{- $kind := ternary "Role" "ClusterRole" (ne .namespace "") }}
{{- $roles := ternary $name (include "ferry.clusterRole" $root) (ne .namespace "") }}
{{- $operator := dict "kind" "ServiceAccount" "name" (include "ferry.operatorAccount" $root) "namespace" $root.Release.Namespace }}
{{- include "ferry.binding" (dict "root" $root "namespace" .namespace "name" (printf "%s-operator" $name) "kind" $kind "role" (printf "%s-operator" $roles) "subjects" (list $operator)) }}
{{- $drivers := list }}
{{- range prepend $root.Values.jobs.driverAccounts (include "ferry.jobAccount" $root) }}
{{- $account := dict "kind" "ServiceAccount" "name" . }}
{{- if $.namespace }}{{ $account = set $account "namespace" $.namespace }}{{ end }}
{{- $drivers = append $drivers $account }}
{{- end }}
{{ include "ferry.binding" (dict "root" $root "namespace" .namespace "name" (printf "%s-driver" $name) "kind" $kind "role" (printf "%s-driver" $roles) "subjects" $drivers) }}
{{- if and $root.Values.jobs.serviceAccount.create (ne .namespace $root.Release.Namespace) }}
{{ include "ferry.jobServiceAccount" . }}
{{- end }}
{{- if $root.Values.networkPolicies.enabled }}
{{ include "ferry.jobPolicies" . }}
{{- end }}
{{- end }}

{{- /* The account of jobs, as an item of a list. Only drivers get a token: they read and write their journals. */}}
{{- define "ferry.jobServiceAccount" -}}
- apiVersion: v1
  kind: ServiceAccount
  metadata:
    name: {{ include "ferry.jobAccount" .root }}
    {{- with .namespace }}
    namespace: {{ . | quote }}
    {{- end }}
    labels: {{- include "ferry.labels" .root | nindent 6 }}
    {{- with .root.Values.jobs.serviceAccount.annotations }}
    annotations: {{- toYaml . | nindent 6 }}
    {{- end }}
  automountServiceAccountToken: false
  {{- with include "ferry.pullSecrets" .root }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* Policies of the pods of jobs, as items of a list. Ports between them: control 7070, metrics 7071, loops 7072, Spark's own
7077-7099, channels from 7100 and Flight from 7200, one for each instance. Every port authenticates its clients, except the driver's
/healthz. */}}
{{- define "ferry.jobPolicies" -}}
{{- $name := include "ferry.fullname" .root }}
{{- $jobs := dict "app.kubernetes.io/managed-by" "ferry" }}
{{- $values := .root.Values.networkPolicies }}
{{- $bounded := not (kindIs "invalid" $values.jobEgress) }}
{{- $far := ne .namespace .root.Release.Namespace }}
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata:
    name: {{ $name }}-jobs
    {{- with .namespace }}
    namespace: {{ . | quote }}
    {{- end }}
    labels: {{- include "ferry.labels" .root | nindent 6 }}
  spec:
    podSelector: {matchLabels: {{ toJson $jobs }}}
    policyTypes: [Ingress{{ if $bounded }}, Egress{{ end }}]
    ingress:
      - from: [{podSelector: {matchLabels: {{ toJson $jobs }}}}]
        ports: [{port: 7070, endPort: 7263}]
      - from:
          - podSelector:
              matchLabels: {{- include "ferry.selector" .root | nindent 16 }}
                app.kubernetes.io/component: operator
            {{- if $far }}
            {{- include "ferry.releaseNamespace" .root | nindent 12 }}
            {{- end }}
        ports: [{port: 7070}]
      - from: {{- toYaml $values.scrapers | nindent 10 }}
        ports: [{port: 7071}]
    {{- if $bounded }}
    egress:
      - to: [{podSelector: {matchLabels: {{ toJson $jobs }}}}]
        ports: [{port: 7070, endPort: 7263}]
      - ports: [{port: 53}, {port: 53, protocol: UDP}]
      {{- include "ferry.redisPeer" (merge (dict "far" $far) .root) | nindent 6 }}
      {{- with $values.jobEgress }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- end }}
{{- if $bounded }}
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata:
    name: {{ $name }}-drivers
    {{- with .namespace }}
    namespace: {{ . | quote }}
    {{- end }}
    labels: {{- include "ferry.labels" .root | nindent 6 }}
  spec:
    podSelector: {matchLabels: {{ toJson (merge (dict "ferry.dev/role" "driver") $jobs) }}}
    policyTypes: [Egress]
    egress:
      - ports: # the API server, for the journal
          {{- range $values.apiServerPorts }}
          - {port: {{ . }}}
          {{- end }}
{{- end }}
{{- end }}
