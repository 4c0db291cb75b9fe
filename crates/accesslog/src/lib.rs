//! Parses lines from gateway access logs into the requests that they describe.
//!
//! Gateways describe the same failure differently, and say little about most failures (`docs/access-logs.md`). Anything
//! that a line does not show with certainty is `None`. No path, query, header or client address leaves this crate:
//! fields that are not needed are dropped, and errors do not quote the line.

mod caddy;
mod decimal;
mod envoy;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod haproxy;
mod json_line;
mod line_error;
mod line_parts;
mod line_time;
mod log_format;
mod nginx;
mod nginx_template;
mod own_log;
mod response_outcome;
#[cfg(test)]
mod tests;
mod traefik;
mod upstream_address;

pub use line_error::LineError;
pub use log_format::{LogFormat, LogFormatError};
pub use nginx_template::{NginxTemplate, TemplateError};

/// Maximum length of a line, in bytes. It depends partly on the client; most lines are shorter than 2 KiB.
pub const LONGEST_LINE: usize = 64 * 1024;
