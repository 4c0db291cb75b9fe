//! Object names, by the rules of apimachinery (`k8s.io/apimachinery/pkg/api/validation`), and their form in URL paths.

use std::borrow::Cow;

/// Maximum length of a name: apimachinery's `DNS1123SubdomainMaxLength`.
const LONGEST_SUBDOMAIN: usize = 253;
/// Maximum length of a namespace: apimachinery's `DNS1123LabelMaxLength`.
const LONGEST_LABEL: usize = 63;

/// Groups in which all names are DNS subdomains. Other groups may use anything that fits into a path; role names, for
/// example, contain colons.
const DNS_GROUPS: &[&str] = &[
    "",
    "apps",
    "autoscaling",
    "batch",
    "discovery.k8s.io",
    "events.k8s.io",
    "gateway.networking.k8s.io",
    "networking.k8s.io",
    "policy",
];

/// Returns true if the name can be part of a path (apimachinery's `IsValidPathSegmentName`). Such a name can neither
/// change the path nor be read as an escape.
pub fn is_path_segment(name: &str) -> bool {
    !["", ".", ".."].contains(&name) && !name.contains(['/', '%'])
}

/// Returns true if the name is a DNS label (RFC 1123), as namespace names are.
pub fn is_dns_label(name: &str) -> bool {
    name.len() <= LONGEST_LABEL && is_dns_part(name)
}

/// Returns true if the name consists of DNS labels (RFC 1123), each of which may be as long as a whole name.
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= LONGEST_SUBDOMAIN && name.split('.').all(is_dns_part)
}

/// Returns true if the part is a DNS label of any length.
fn is_dns_part(part: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !part.is_empty() && part.bytes().all(is_inner) && !part.starts_with('-') && !part.ends_with('-')
}

/// Returns true if an object of this kind can have this name.
pub(super) fn is_name(group: &str, resource: &str, name: &str) -> bool {
    match (group, resource) {
        ("", "namespaces") => is_dns_label(name),
        _ if DNS_GROUPS.contains(&group) => is_dns_subdomain(name),
        _ => is_path_segment(name),
    }
}

/// Encodes a name for use in a URL path.
pub fn in_path(name: &str) -> Cow<'_, str> {
    // RFC 3986: unreserved characters, and those without a special meaning in a path segment.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@!$&'()*+,;=".contains(&byte);
    if name.bytes().all(is_plain) {
        return name.into();
    }
    let escaped = |byte: u8| match byte {
        _ if is_plain(byte) => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(escaped).collect::<String>().into()
}

/// Decodes a URL path segment into a name; `None` if it is not valid.
pub(super) fn from_path(part: &str) -> Option<String> {
    let mut bytes = part.bytes();
    let mut name = Vec::with_capacity(part.len());
    while let Some(byte) = bytes.next() {
        name.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                u8::try_from(16 * high + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_check_follows_apimachinery_rules() {
        for name in ["web", "web-5f9d.x", "0", "a--b"] {
            assert!(is_name("", "pods", name), "{name}");
        }
        let bad =
            ["", ".", "..", "Web", "a_b", "-a", "a-", "a..b", "a/b", "a%2fb", "a?b=c", "a#b", "a\u{1b}b"];
        for name in bad {
            assert!(!is_name("", "pods", name), "{name}");
            assert!(!is_name("", "namespaces", name), "{name}");
        }
        assert!(!is_name("", "namespaces", "a.b") && !is_name("", "pods", &"a".repeat(254)));
        let rbac = "rbac.authorization.k8s.io";
        assert!(is_name(rbac, "roles", "system:node reader"));
        assert!(
            !is_name(rbac, "roles", "..") && !is_name(rbac, "roles", "a/b") && !is_name(rbac, "roles", "a%b")
        );
    }

    #[test]
    fn encoded_name_round_trips() {
        for name in ["web", "system:node reader", "x?gracePeriodSeconds=0&", "a#b", "ä", "a/../b", "%2e"] {
            let part = in_path(name);
            assert!(!part.contains(['?', '#', '/', ' ']), "{part}");
            assert_eq!(from_path(&part).as_deref(), Some(name));
        }
        assert_eq!(in_path("web-1:8080"), "web-1:8080");
        assert_eq!(
            [from_path("%"), from_path("%2"), from_path("%zz"), from_path("%ff")],
            [None, None, None, None]
        );
    }
}
