//! `rolldrop inject`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use super::named_values::one_of;
use super::say::say;
use rolldrop_sidecar::inject::{
    self, AppProtocol, InjectOptions, KubernetesVersion, SecretKey, Selection, WorkloadName,
};

/// Maximum size of manifests in bytes: a hundred times larger than real files.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

const PROTOCOLS: [(&str, &str, AppProtocol); 2] =
    [("http", "HTTP", AppProtocol::Http), ("tcp", "Any protocol", AppProtocol::Tcp)];

/// Arguments of `rolldrop inject`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl create secret generic rolldrop-admin --from-literal=token=$(openssl rand -hex 32)
  rolldrop inject -f shop.yaml --image registry.example.org/rolldrop:0.1.0 --admin-token rolldrop-admin | kubectl apply -f -
  kubectl get deploy/web svc/web -o yaml | rolldrop inject --admin-token rolldrop-admin | kubectl apply -f -
  helm template shop ./chart | rolldrop inject --workload deployment/web --admin-token rolldrop-admin > shop.yaml
  rolldrop inject --uninject -f shop-with-sidecar.yaml

Include the workloads' Services: their numeric target ports have to change.
Comments are kept, and --uninject restores the original text.")]
pub(super) struct InjectArgs {
    /// Manifests, in YAML or JSON; `-` is stdin.
    #[arg(short, long = "file", value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Remove the sidecar.
    #[arg(long)]
    uninject: bool,
    /// Workload to add the sidecar to; repeatable [default: all that can have it, with a note for each that cannot].
    ///
    /// This can be any object with a pod template at `spec.template`.
    #[arg(
        long = "workload",
        value_name = "KIND/NAME",
        conflicts_with = "uninject",
        help_heading = "Workloads"
    )]
    workloads: Vec<WorkloadName>,
    /// Port of the app that the sidecar takes over [default: the port that the Services use, else the port that the
    /// containers declare].
    ///
    /// Workloads that neither declare this port nor receive requests on it are left alone.
    #[arg(long, value_name = "N", conflicts_with = "uninject", help_heading = "Workloads")]
    port: Option<u16>,
    /// Protocol of the port: http (also HTTP/2 and TLS), or tcp for anything else [default: http].
    ///
    /// With tcp, the sidecar records connections, not requests. Without this option, a port that is known to carry
    /// a protocol other than HTTP gets no sidecar.
    #[arg(long, value_name = "MODE", value_parser = one_of(&PROTOCOLS), hide_possible_values = true)]
    #[arg(conflicts_with = "uninject", help_heading = "Workloads")]
    mode: Option<AppProtocol>,
    /// Image of the sidecar.
    #[arg(long, value_name = "IMAGE", default_value = "rolldrop")]
    #[arg(conflicts_with = "uninject", help_heading = "Sidecar")]
    image: String,
    /// Secret with the token that the admin port requires (default key: `token`).
    ///
    /// Without a token, no one can read the proxy's records, not even a run.
    #[arg(long, value_name = "SECRET[/KEY]", conflicts_with = "uninject", help_heading = "Sidecar")]
    admin_token: Option<SecretKey>,
    /// Maximum number of client connections [default: 4096]; more than that also raises the sidecar's memory limit.
    #[arg(long, value_name = "N", conflicts_with = "uninject", help_heading = "Sidecar")]
    max_connections: Option<NonZeroUsize>,
    /// Oldest Kubernetes version that the result must work on.
    ///
    /// Before 1.33, Services cannot use the names of a sidecar's ports, so they get the numbers. Before 1.29, there are
    /// no native sidecars.
    #[arg(long, value_name = "1.N", default_value_t = KubernetesVersion::NAMED_SIDECAR_PORTS)]
    #[arg(conflicts_with = "uninject", help_heading = "Sidecar")]
    kubernetes_version: KubernetesVersion,
}

impl InjectArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let text = self.read().with_context(|| format!("failed to read {}", self.file.display()))?;
        let is_closed = !self.uninject && self.admin_token.is_none();
        let file = match self.file.as_path() {
            stdin if stdin == Path::new("-") => "stdin".to_owned(),
            file => file.display().to_string(),
        };
        let output = if self.uninject {
            inject::uninject(&file, &text)
        } else {
            let options = InjectOptions {
                image: self.image,
                port: self.port,
                kubernetes: self.kubernetes_version,
                admin_token: self.admin_token,
                mode: self.mode,
                max_connections: self.max_connections,
                selection: match self.workloads {
                    none if none.is_empty() => Selection::Fit,
                    named => Selection::Named(named),
                },
            };
            inject::inject(&file, &text, &options)
        }?;
        for note in output.notes {
            say(&note);
        }
        if is_closed {
            say("without --admin-token, the sidecars do not hand out rows, so a run cannot use them");
        }
        io::stdout().write_all(output.text.as_bytes()).context("failed to write to stdout")?;
        Ok(ExitCode::SUCCESS)
    }

    fn read(&self) -> io::Result<String> {
        let input: Box<dyn Read> = match self.file.as_path() {
            stdin if stdin == Path::new("-") => Box::new(io::stdin()),
            file => Box::new(File::open(file)?),
        };
        let mut bytes = Vec::new();
        input.take(FILE_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES {
            let why = format!("it is larger than {} MiB: split it", FILE_BYTES >> 20);
            return Err(io::Error::other(why));
        }
        String::from_utf8(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("not UTF-8: {error}")))
    }
}
