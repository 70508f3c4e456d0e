{{- /* One manifest with the release's namespace and labels, and with the values. */ -}}
{{- define "trisect.object" -}}
{{- $object := .object }}
{{- $names := dict "app.kubernetes.io/name" "trisect" "app.kubernetes.io/managed-by" "Helm" }}
{{- $_ := set $object.metadata "labels" (merge $names ($object.metadata.labels | default dict)) }}
{{- if not .clusterWide }}{{ $_ := set $object.metadata "namespace" .root.Release.Namespace }}{{ end }}
{{- range $subject := $object.subjects }}{{ $_ := set $subject "namespace" $.root.Release.Namespace }}{{ end }}
{{- if eq $object.kind "ClusterRoleBinding" }}
{{- $_ := set $object.metadata "name" (printf "trisect-devices-%s" .root.Release.Namespace) }}
{{- end }}
{{- if eq $object.kind "CustomResourceDefinition" }}
{{- /* The end of the definition would be the end of every Fleet. */}}
{{- $keep := dict "helm.sh/resource-policy" "keep" }}
{{- $_ := set $object.metadata "annotations" (merge $keep ($object.metadata.annotations | default dict)) }}
{{- end }}
{{- if eq $object.kind "Deployment" }}
{{- include "trisect.deployment" (dict "spec" $object.spec "values" .root.Values) }}
{{- end }}
{{- if has $object.kind (list "Deployment" "DaemonSet") }}
{{- include "trisect.images" (dict "pod" $object.spec.template.spec "values" .root.Values) }}
{{- end }}
{{- with ($object.spec).selector }}
{{- include "trisect.fleet" (dict "labels" (.matchLabels | default .) "values" $.root.Values) }}
{{- end }}
{{- toYaml $object }}
{{- end }}

{{- /* Set the fleet in labels that name one. */ -}}
{{- define "trisect.fleet" -}}
{{- if hasKey .labels "trisect.dev/fleet" }}{{ $_ := set .labels "trisect.dev/fleet" .values.fleet }}{{ end }}
{{- end }}

{{- /* Change a Deployment's spec by the values of its component. */ -}}
{{- define "trisect.deployment" -}}
{{- $component := index .spec.selector.matchLabels "app.kubernetes.io/component" }}
{{- $given := index .values $component }}
{{- $_ := set .spec "replicas" ($given.replicas | int) }}
{{- $pod := .spec.template.spec }}
{{- include "trisect.fleet" (dict "labels" .spec.template.metadata.labels "values" .values) }}
{{- range $spread := $pod.topologySpreadConstraints }}
{{- range $key, $value := $.values.topologySpread }}{{ $_ := set $spread $key $value }}{{ end }}
{{- include "trisect.fleet" (dict "labels" $spread.labelSelector.matchLabels "values" $.values) }}
{{- end }}
{{- $container := first $pod.containers }}
{{- $_ := set $container "image" .values.image }}
{{- with $given.priorityClassName }}{{ $_ := set $pod "priorityClassName" . }}{{ end }}
{{- if $given.resources }}{{ $_ := set $container "resources" $given.resources }}{{ end }}
{{- if eq $component "controller" }}
{{- $args := list }}
{{- range $arg := $container.args }}
{{- $args = append $args (hasPrefix "--fleet=" $arg | ternary (printf "--fleet=%s" $.values.fleet) $arg) }}
{{- end }}
{{- $_ := set $container "args" $args }}
{{- $variables := dict "TRISECT_MODELS" (printf "pvc:%s" .values.models) }}
{{- /* An upgrade with --reuse-values lacks the values that a former chart did not have. */}}
{{- range $one := $container.env }}{{ if eq $one.name "TRISECT_IMAGE" }}
{{- $image := ($.values.servers).image | default $one.value }}
{{- $_ := set $variables $one.name (include "trisect.image" (dict "image" $image "values" $.values)) }}
{{- end }}{{ end }}
{{- with (.values.servers).priorityClassName }}{{ $_ := set $variables "TRISECT_PRIORITY_CLASS" . }}{{ end }}
{{- with .values.imagePullSecrets }}{{ $_ := set $variables "TRISECT_PULL_SECRETS" (join "," .) }}{{ end }}
{{- $variables = merge (deepCopy ($given.env | default dict)) $variables }}
{{- $env := list }}
{{- range $one := $container.env }}
{{- if hasKey $variables $one.name }}{{ $_ := set $one "value" (get $variables $one.name) }}{{ end }}
{{- $_ := unset $variables $one.name }}
{{- $env = append $env $one }}
{{- end }}
{{- range $name, $value := $variables }}{{ $env = append $env (dict "name" $name "value" $value) }}{{ end }}
{{- $_ := set $container "env" $env }}
{{- range $volume := $pod.volumes }}
{{- with $volume.persistentVolumeClaim }}{{ $_ := set . "claimName" $.values.models }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* An image at the mirror, if there is one. */ -}}
{{- define "trisect.image" -}}
{{- if .values.imagePrefix }}{{ .values.imagePrefix }}/{{ end }}{{ .image }}
{{- end }}

{{- /* Set where a pod's images come from. */ -}}
{{- define "trisect.images" -}}
{{- range $container := .pod.containers }}
{{- $_ := set $container "image" (include "trisect.image" (dict "image" $container.image "values" $.values)) }}
{{- end }}
{{- $secrets := list }}
{{- range $name := .values.imagePullSecrets }}{{ $secrets = append $secrets (dict "name" $name) }}{{ end }}
{{- if $secrets }}{{ $_ := set .pod "imagePullSecrets" $secrets }}{{ end }}
{{- end }}
