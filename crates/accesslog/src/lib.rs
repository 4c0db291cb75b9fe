//! Access logs of gateways: a line becomes the request that it shows.
//!
//! Gateways say different things about the same failure, and little about most of them (`docs/access-logs.md`). What a
//! line does not show with certainty is `None`. No path, query, header or client address leaves this crate: fields that
//! are not needed are dropped, and errors do not quote the line.

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

/// Longest line that is read, in bytes. Clients choose part of a line's length; most lines are shorter than 2 KiB.
pub const LONGEST_LINE: usize = 64 * 1024;
