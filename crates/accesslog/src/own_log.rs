//! Recognises lines that gateways write about themselves to the same stream as their access log.

/// Beginnings of such lines: from HAProxy, Traefik 2, and the startup of nginx and ingress-nginx containers.
const BEGINNINGS: &[&str] = &[
    "[NOTICE]",
    "[WARNING]",
    "[ALERT]",
    "[INFO]",
    "time=\"",
    "/docker-entrypoint",
    "10-listen-on-ipv6",
    "-----",
    "NGINX Ingress controller",
    "  Release:",
    "  Build:",
    "  Repository:",
    "  nginx version:",
];

/// Log levels of Traefik.
const LEVELS: &[&str] = &["DBG", "INF", "WRN", "ERR", "FTL"];

/// Returns true if a line is clearly not an access log entry.
pub(crate) fn is_own_log(line: &str) -> bool {
    line.trim().is_empty()
        || BEGINNINGS.iter().any(|beginning| line.starts_with(beginning))
        // Envoy: [2026-11-29 02:20:54.945][1][info].
        || fits(line, "[0000-00-00 00:00:00.000][")
        // The nginx error log.
        || fits(line, "0000/00/00 00:00:00 [")
        // klog, as in the ingress-nginx controller: I1129 02:20:54.945381.
        || (line.starts_with(['I', 'W', 'E', 'F']) && fits(&line[1..], "0000 00:00:00.000000 "))
        || is_log_of_traefik(line)
}

/// Returns true for lines such as `2026-11-29T02:18:57Z ERR`, which may be coloured.
fn is_log_of_traefik(line: &str) -> bool {
    let behind_colour = line.strip_prefix('\u{1b}').and_then(|rest| rest.split_once('m'));
    let plain = behind_colour.map_or(line, |(_, rest)| rest);
    let level = plain.get("2026-11-29T02:18:57Z".len()..).unwrap_or_default();
    fits(plain, "0000-00-00T00:00:00")
        && level.split(' ').take(3).any(|word| LEVELS.iter().any(|level| word.contains(level)))
}

/// Returns true if the line begins with the pattern, in which 0 stands for any digit.
fn fits(line: &str, pattern: &str) -> bool {
    let same = |(a, b): (u8, u8)| if b == b'0' { a.is_ascii_digit() } else { a == b };
    line.len() >= pattern.len() && line.bytes().zip(pattern.bytes()).all(same)
}
