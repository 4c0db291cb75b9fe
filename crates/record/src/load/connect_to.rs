//! Overrides of the address in a URL, like curl's `--connect-to`.

use std::fmt;
use std::str::FromStr;

use crate::names::as_text;

/// An override: requests for one host and port connect to another. The requests themselves do not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectTo {
    /// URL host that the override applies to, without brackets; `None` for every host.
    pub from_host: Option<String>,
    /// URL port that the override applies to; `None` for every port.
    pub from_port: Option<u16>,
    /// Host to connect to, without brackets; `None` for the URL's host.
    pub host: Option<String>,
    /// Port to connect to; `None` for the URL's port.
    pub port: Option<u16>,
}

impl ConnectTo {
    /// Returns the host and port to connect to instead of `host` and `port`; `None` if the override does not apply to
    /// them.
    pub fn target(&self, host: &str, port: u16) -> Option<(String, u16)> {
        let is_for = self.from_host.as_ref().is_none_or(|from| from.eq_ignore_ascii_case(host))
            && self.from_port.is_none_or(|from| from == port);
        let to = || (self.host.clone().unwrap_or_else(|| host.to_owned()), self.port.unwrap_or(port));
        is_for.then(to)
    }
}

/// Error for text that is not an override.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not HOST1:PORT1:HOST2:PORT2 (each part may be empty), such as web:80:127.0.0.1:8080")]
pub struct NotAnOverride(String);

impl FromStr for ConnectTo {
    type Err = NotAnOverride;

    fn from_str(text: &str) -> Result<Self, NotAnOverride> {
        let parse = || {
            let (from_host, rest) = host(text)?;
            let (from_port, rest) = rest.split_once(':')?;
            let (to_host, to_port) = host(rest)?;
            let port = |text: &str| match text {
                "" => Some(None),
                number => number.parse().ok().map(Some),
            };
            Some(Self { from_host, from_port: port(from_port)?, host: to_host, port: port(to_port)? })
        };
        parse().ok_or_else(|| NotAnOverride(text.to_owned()))
    }
}

as_text!(ConnectTo);

/// Splits off the leading host; returns the host and the rest after the colon.
fn host(text: &str) -> Option<(Option<String>, &str)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(inside) => inside.split_once("]:")?,
        None => text.split_once(':')?,
    };
    Some(((!host.is_empty()).then(|| host.to_owned()), rest))
}

impl fmt::Display for ConnectTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = |host: &Option<String>| match host {
            Some(address) if address.contains(':') => format!("[{address}]"),
            host => host.clone().unwrap_or_default(),
        };
        let port = |port: &Option<u16>| port.map(|port| port.to_string()).unwrap_or_default();
        let (from_host, to_host) = (host(&self.from_host), host(&self.host));
        write!(f, "{from_host}:{}:{to_host}:{}", port(&self.from_port), port(&self.port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_to_follows_curl_syntax() {
        let to = |text: &str| text.parse::<ConnectTo>();
        for text in ["web:80:127.0.0.1:8080", "::[::1]:", "[fe80::1]:1:b:2", ":::8080"] {
            assert_eq!(to(text).map(|to| to.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["web", "web:80", "web:80:b", "web:eighty:b:1", "[::1:80:b:1"] {
            assert!(to(wrong).is_err(), "{wrong}");
        }
        let target = |text: &str, host: &str| to(text).unwrap().target(host, 80);
        assert_eq!(target("web:80:127.0.0.1:8080", "WEB"), Some(("127.0.0.1".into(), 8080)));
        assert_eq!(target("web:81:127.0.0.1:8080", "web"), None);
        assert_eq!(target("::[::1]:", "web"), Some(("::1".into(), 80)));
        assert_eq!(target(":::8080", "web"), Some(("web".into(), 8080)));
    }
}
