//! Names that Kubernetes' own components agree on and that several modules here use.

/// Label of an EndpointSlice that names its Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of objects that belong to a headless Service.
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";
/// ConfigMap in every namespace that holds the API server's CA certificate.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";
/// Name prefix of the volume that holds a pod's service account token.
pub(crate) const TOKEN_VOLUME: &str = "kube-api-access-";
/// Service account for pods that specify none. Every namespace has it.
pub(crate) const DEFAULT_ACCOUNT: &str = "default";
