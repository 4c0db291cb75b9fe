//! `rolldrop inject`.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use super::say::say;
use crate::inject::{self, KubernetesVersion, Options, SecretKey};

/// Arguments of `rolldrop inject`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl create secret generic rolldrop-admin --from-literal=token=$(openssl rand -hex 32)
  rolldrop inject -f shop.yaml --image registry.example.org/rolldrop:0.1.0 --admin-token rolldrop-admin | kubectl apply -f -
  kubectl get deploy/web svc/web -o yaml | rolldrop inject --admin-token rolldrop-admin | kubectl apply -f -
  rolldrop inject --uninject -f shop-with-sidecar.yaml

Include the Services of the workloads: those with a numeric target port are changed.
Comments stay, and --uninject restores the original text.")]
pub(super) struct InjectArgs {
    /// The manifests, YAML or JSON; `-` is stdin.
    #[arg(short, long = "file", value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Remove the sidecar.
    #[arg(long)]
    uninject: bool,
    /// The image of the sidecar.
    #[arg(
        long,
        value_name = "IMAGE",
        default_value = "rolldrop",
        conflicts_with = "uninject",
        help_heading = "Sidecar"
    )]
    image: String,
    /// The app's port that the sidecar takes over [default: the one that the Services use, else the one that the
    /// containers declare].
    #[arg(long, value_name = "N", conflicts_with = "uninject", help_heading = "Sidecar")]
    port: Option<u16>,
    /// The oldest Kubernetes that the result is for.
    ///
    /// Before 1.33, Services do not know the names of a sidecar's ports, so they are changed to the number; before 1.29
    /// there are no native sidecars.
    #[arg(
        long,
        value_name = "1.N",
        default_value_t = KubernetesVersion::NAMED_SIDECAR_PORTS,
        conflicts_with = "uninject",
        help_heading = "Sidecar"
    )]
    kubernetes_version: KubernetesVersion,
    /// Make the admin port require the token in this Secret (default key: `token`).
    ///
    /// Without a token nobody can read what the proxy records, not even a run.
    #[arg(long, value_name = "SECRET[/KEY]", conflicts_with = "uninject", help_heading = "Sidecar")]
    admin_token: Option<SecretKey>,
}

impl InjectArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let text = self.read().with_context(|| format!("failed to read {}", self.file.display()))?;
        let is_closed = !self.uninject && self.admin_token.is_none();
        let output = if self.uninject {
            inject::uninject(&text)
        } else {
            let options = Options {
                image: self.image,
                port: self.port,
                kubernetes: self.kubernetes_version,
                admin_token: self.admin_token,
            };
            inject::inject(&text, &options)
        }?;
        for note in output.notes {
            say(&note);
        }
        if is_closed {
            say("without --admin-token the sidecars hand out no rows: a run gets none of them");
        }
        std::io::stdout().write_all(output.text.as_bytes()).context("failed to write to stdout")?;
        Ok(ExitCode::SUCCESS)
    }

    fn read(&self) -> std::io::Result<String> {
        if self.file == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            return Ok(text);
        }
        std::fs::read_to_string(&self.file)
    }
}
