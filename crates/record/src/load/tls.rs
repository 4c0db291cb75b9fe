//! TLS settings.

use serde::{Deserialize, Serialize};

use crate::names::named;

/// A user's TLS settings. Certificates and keys are here as PEM, because a worker elsewhere does not have the files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsSettings {
    /// The authorities to trust; `None` for the system's.
    pub ca_pem: Option<String>,
    /// The client's certificate, and those between it and its authority.
    pub cert_pem: Option<String>,
    /// The client's key; `None` if it is in the certificate's file.
    pub key_pem: Option<String>,
    /// The name to ask for (SNI) and to expect in the certificate, instead of the URL's host.
    pub server_name: Option<String>,
    /// Whether any certificate is accepted.
    pub insecure: bool,
    /// The versions that are offered.
    pub versions: TlsVersions,
    /// Whether a handshake may resume an earlier session with the same name.
    pub resume: bool,
}

impl TlsSettings {
    /// The part that may be written: certificates and keys may be secrets.
    pub fn written(&self) -> WrittenTls {
        WrittenTls {
            own_ca: self.ca_pem.is_some(),
            client_certificate: self.cert_pem.is_some(),
            server_name: self.server_name.clone(),
            insecure: self.insecure,
            versions: self.versions,
            resume: self.resume,
        }
    }
}

/// TLS settings as `run.json` holds them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenTls {
    /// Whether other authorities than the system's are trusted.
    pub own_ca: bool,
    /// Whether the client has a certificate.
    pub client_certificate: bool,
    /// The name to ask for and to expect, instead of the URL's host.
    pub server_name: Option<String>,
    /// Whether any certificate is accepted.
    pub insecure: bool,
    /// The versions that are offered.
    pub versions: TlsVersions,
    /// Whether sessions are resumed.
    pub resume: bool,
}

named! {
    /// Versions of TLS that are offered.
    #[derive(Default)]
    pub enum TlsVersions else UnknownTlsVersions "unknown versions of TLS {0:?}" {
        /// 1.2 and 1.3.
        #[default]
        Any = "any",
        /// Only 1.2.
        Only12 = "only12",
        /// Only 1.3.
        Only13 = "only13",
    }
}

impl TlsVersions {
    /// The one version `1.2` or `1.3`.
    pub fn only(version: &str) -> Option<Self> {
        match version {
            "1.2" => Some(TlsVersions::Only12),
            "1.3" => Some(TlsVersions::Only13),
            _ => None,
        }
    }
}
