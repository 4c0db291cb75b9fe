//! TLS arguments of `rolldrop load`, and their conversion to settings.

use std::path::{Path, PathBuf};

use anyhow::Context;

use rolldrop_load::{TlsSettings, TlsVersions};
use rolldrop_record::Secret;

/// Heading of these options in `--help`.
const TLS: &str = "TLS";

/// Options for https:// targets.
#[derive(Debug, clap::Args)]
pub(super) struct TlsArgs {
    /// PEM file with the certificate authorities to trust instead of the system's
    #[arg(long, visible_alias = "ca", value_name = "FILE", help_heading = TLS)]
    cacert: Option<PathBuf>,
    /// PEM file with the client certificate, its intermediates, and its key unless --key is set
    #[arg(long, value_name = "FILE", help_heading = TLS)]
    cert: Option<PathBuf>,
    /// PEM file with the key of the client certificate
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = TLS)]
    key: Option<PathBuf>,
    /// Server name for SNI and certificate checks [default: the URL's host]
    #[arg(long, value_name = "NAME", help_heading = TLS)]
    server_name: Option<String>,
    /// Accept any certificate
    #[arg(short = 'k', long, help_heading = TLS)]
    insecure: bool,
    /// Offer only TLS 1.3
    #[arg(long = "tlsv1.3", help_heading = TLS)]
    tls13: bool,
    /// Highest TLS version to offer
    #[arg(long, value_name = "VERSION", value_parser = ["1.2", "1.3"], help_heading = TLS)]
    tls_max: Option<String>,
    /// Resume sessions, for shorter handshakes after the first if the server allows it
    #[arg(long, help_heading = TLS)]
    tls_resume: bool,
}

impl TlsArgs {
    /// Makes the settings, including the files' contents.
    pub(super) fn settings(&self) -> anyhow::Result<TlsSettings> {
        let versions = match (self.tls13, self.tls_max.as_deref()) {
            (true, Some("1.2")) => anyhow::bail!("--tlsv1.3 and --tls-max 1.2 exclude every TLS version"),
            (true, _) => TlsVersions::Only13,
            (false, Some("1.2")) => TlsVersions::Only12,
            (false, _) => TlsVersions::Any,
        };
        Ok(TlsSettings {
            ca_pem: read("--cacert", self.cacert.as_deref())?,
            cert_pem: read("--cert", self.cert.as_deref())?,
            key_pem: read("--key", self.key.as_deref())?,
            server_name: self.server_name.clone(),
            insecure: self.insecure,
            versions,
            resume: self.tls_resume,
        })
    }
}

fn read(option: &str, path: Option<&Path>) -> anyhow::Result<Option<Secret>> {
    let Some(path) = path else { return Ok(None) };
    let failed = || format!("failed to read the {option} file {}", path.display());
    let bytes = std::fs::read(path).with_context(failed)?;
    // Bytes that are not text cannot be PEM. The error follows when they are used.
    Ok(Some(String::from_utf8_lossy(&bytes).into()))
}
