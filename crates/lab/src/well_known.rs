//! Names that Kubernetes' own components agree on, and that more than one part here uses.

/// The label of an EndpointSlice that names its Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of objects that belong to a headless Service.
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";
/// The ConfigMap of every namespace with the certificate of the API server's authority.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";
/// Prefix of the name of the volume with a pod's service account token.
pub(crate) const TOKEN_VOLUME: &str = "kube-api-access-";
/// The service account of pods that name none. Every namespace has it.
pub(crate) const DEFAULT_ACCOUNT: &str = "default";
