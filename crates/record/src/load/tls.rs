//! TLS settings.

use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::names::named;

/// TLS settings given by the user. Certificates and keys are stored as PEM because a remote worker does not have the
/// files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TlsSettings {
    /// Certificates of the trusted authorities; `None` for the system's.
    #[serde(rename = "ca")]
    pub ca_pem: Option<Secret>,
    /// Client certificate, followed by any intermediate certificates.
    #[serde(rename = "cert")]
    pub cert_pem: Option<Secret>,
    /// Private key of the client certificate; `None` if the key is in the certificate file.
    #[serde(rename = "key")]
    pub key_pem: Option<Secret>,
    /// Server name to send (SNI) and to expect in the certificate, instead of the URL's host.
    pub server_name: Option<String>,
    /// True if any certificate is accepted.
    pub insecure: bool,
    /// Offered TLS versions.
    #[serde(rename = "version", with = "only_version", skip_serializing_if = "TlsVersions::is_any")]
    pub versions: TlsVersions,
    /// True if a handshake may resume an earlier session with the same server name.
    pub resume: bool,
}

impl TlsSettings {
    /// Returns the settings that are safe to store. Certificates and keys are omitted because they may be secret.
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

/// TLS settings as recorded in `run.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenTls {
    /// True if authorities other than the system's are trusted.
    pub own_ca: bool,
    /// True if the client has a certificate.
    pub client_certificate: bool,
    /// Server name to send and to expect, instead of the URL's host.
    pub server_name: Option<String>,
    /// True if any certificate is accepted.
    pub insecure: bool,
    /// Offered TLS versions.
    pub versions: TlsVersions,
    /// True if sessions are resumed.
    pub resume: bool,
}

named! {
    /// Offered TLS versions.
    #[derive(Default)]
    pub enum TlsVersions else UnknownTlsVersions "unknown TLS versions {0:?}" {
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
    /// Returns the setting for the single version `1.2` or `1.3`, and `None` for any other text.
    pub fn only(version: &str) -> Option<Self> {
        [TlsVersions::Only12, TlsVersions::Only13].into_iter().find(|only| only.version() == Some(version))
    }

    /// Returns the offered version, if there is only one.
    pub const fn version(self) -> Option<&'static str> {
        match self {
            TlsVersions::Any => None,
            TlsVersions::Only12 => Some("1.2"),
            TlsVersions::Only13 => Some("1.3"),
        }
    }

    fn is_any(&self) -> bool {
        *self == TlsVersions::Any
    }
}

/// Scenario format of the TLS versions: the only version to offer.
mod only_version {
    use serde::{Deserializer, Serialize, Serializer};

    use super::TlsVersions;
    use crate::units;

    pub(super) fn serialize<S: Serializer>(versions: &TlsVersions, serializer: S) -> Result<S::Ok, S::Error> {
        versions.version().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TlsVersions, D::Error> {
        units::version(deserializer, TlsVersions::only, "1.2 or 1.3")
    }
}
