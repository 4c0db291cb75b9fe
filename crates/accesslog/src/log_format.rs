//! Access log formats and their names on the command line.

use std::fmt;
use std::str::FromStr;

use crate::nginx_template::INGRESS_NGINX;
use crate::own_log::is_own_log;
use crate::{LONGEST_LINE, LineError, NginxTemplate, TemplateError, caddy, envoy, haproxy, nginx, traefik};
use rolldrop_record::LoggedRequest;

/// Format of a gateway's access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// `envoy-json`: JSON with the default keys of Envoy Gateway or Istio.
    EnvoyJson,
    /// `envoy`: Envoy's default text, or Istio's.
    EnvoyText,
    /// `ingress-nginx`: its default, `upstreaminfo`.
    IngressNginx,
    /// `nginx=<log_format>`
    Nginx(Box<NginxTemplate>),
    /// `haproxy`: `httplog`, optionally with the server's address after the queues.
    Haproxy,
    /// `traefik-json`
    TraefikJson,
    /// `traefik`: its common log format.
    TraefikText,
    /// `caddy`: JSON, optionally with the fields `upstream` and `started`.
    Caddy,
}

/// Formats without a template, by name.
const NAMED: [(&str, LogFormat); 7] = [
    ("envoy-json", LogFormat::EnvoyJson),
    ("envoy", LogFormat::EnvoyText),
    ("ingress-nginx", LogFormat::IngressNginx),
    ("haproxy", LogFormat::Haproxy),
    ("traefik-json", LogFormat::TraefikJson),
    ("traefik", LogFormat::TraefikText),
    ("caddy", LogFormat::Caddy),
];

/// Reason why a text is not a valid [`LogFormat`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogFormatError {
    /// No format has this name.
    #[error(
        "unknown log format: use envoy-json, envoy, ingress-nginx, nginx=<log_format>, haproxy, traefik-json, traefik \
         or caddy"
    )]
    Unknown,
    /// The nginx template cannot be used.
    #[error("nginx=<log_format>: {0}")]
    Template(#[from] TemplateError),
}

impl LogFormat {
    /// Parses a line, with or without its line ending. Returns `None` if it is clearly not an access log entry but a
    /// message from the gateway about itself.
    ///
    /// # Errors
    /// Fails if the line is longer than [`LONGEST_LINE`] or is not in this format.
    pub fn parse(&self, line: &[u8]) -> Result<Option<LoggedRequest>, LineError> {
        if line.len() > LONGEST_LINE {
            return Err(LineError::TooLong);
        }
        // Clients may send any bytes in a path or header. The fields that are used are checked later.
        let text = String::from_utf8_lossy(line);
        let line = text.trim_end_matches(['\r', '\n']);
        let read = match self {
            Self::EnvoyJson => envoy::read_json(line),
            Self::EnvoyText => envoy::read_text(line).map(Some),
            Self::IngressNginx => nginx::read(&INGRESS_NGINX, line).map(Some),
            Self::Nginx(template) => nginx::read(template, line).map(Some),
            Self::Haproxy => haproxy::read(line),
            Self::TraefikJson => traefik::read_json(line),
            Self::TraefikText => traefik::read_text(line).map(Some),
            Self::Caddy => caddy::read(line),
        };
        match read {
            Err(_) if is_own_log(line) => Ok(None),
            read => read,
        }
    }
}

impl FromStr for LogFormat {
    type Err = LogFormatError;

    fn from_str(text: &str) -> Result<Self, LogFormatError> {
        if let Some((_, format)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(format.clone());
        }
        let template = text.strip_prefix("nginx=").ok_or(LogFormatError::Unknown)?;
        Ok(Self::Nginx(Box::new(template.parse()?)))
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nginx(template) => write!(f, "nginx={template}"),
            format => {
                f.write_str(NAMED.iter().find(|(_, named)| named == format).map_or("", |(name, _)| name))
            }
        }
    }
}
