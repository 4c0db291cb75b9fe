//! Entry points of the fuzz targets (`fuzz/`): everything of our own that reads bytes which
//! come over the network, or files that somebody else wrote.
//!
//! Each takes any bytes, and panics if what it promises does not hold: that nothing breaks it, and,
//! where bytes come in pieces, that the pieces make no difference. Compiled into fuzz targets and
//! unit tests only; the tests feed the kept inputs (`fuzz/seeds`), and others like them, through
//! the same entries.

#[cfg(test)]
mod tests;

use std::iter;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use crate::cluster::embedded::{self, resource::Resource, selector::Selection};
use crate::record::wire::{ClockAnswer, ProxyLine};
use crate::{load, proxy, scenario};

/// What takes any bytes.
pub type Entry = fn(&[u8]);

/// Makes the targets: a table of them all, and a function for each, so that its program contains, and
/// the fuzzer counts the edges of, no more than it needs.
macro_rules! targets {
    ($($name:ident: $entry:expr,)*) => {
        /// Every target, by the name of its binary.
        pub const TARGETS: &[(&str, Entry)] = &[$((stringify!($name), target::$name)),*];

        /// A function for each target.
        ///
        /// # Panics
        /// When it does not keep its promise.
        pub mod target {
            $(
                #[doc = concat!("Feeds bytes to the target `", stringify!($name), "`.")]
                pub fn $name(bytes: &[u8]) {
                    $entry(bytes);
                }
            )*
        }
    };
}

targets! {
    http1_requests: crate::proxy::fuzzing::http1_requests,
    http1_responses: crate::proxy::fuzzing::http1_responses,
    http2: crate::proxy::fuzzing::http2,
    admin: crate::proxy::fuzzing::admin,
    proxy_session: crate::proxy::fuzzing::session,
    row_stream: super::row_stream,
    load_response: crate::load::fuzzing::response,
    load_http2: crate::load::fuzzing::http2,
    load_grpc: crate::load::fuzzing::grpc,
    load_conntrack: crate::load::fuzzing::conntrack,
    load_websocket: crate::load::fuzzing::websocket,
    targets: super::target_file,
    scenario: super::read_scenario,
    api_body: crate::cluster::embedded::api::fuzzing::body,
    api_query: super::api_query,
    dns: crate::cluster::embedded::dns::fuzz,
    grpc_probe: crate::cluster::embedded::node::grpc_check::fuzz,
}

/// What counts the bytes that the program has asked for and not given back: a fuzz target's allocator.
/// Without one nothing is counted.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// Bytes in use.
    pub held: fn() -> usize,
    /// The most that have been in use since this was called last.
    pub peak: fn() -> usize,
}

static METER: OnceLock<Meter> = OnceLock::new();

impl Meter {
    /// Counts with this one from now on; the first one stays.
    pub fn install(self) {
        let _ = METER.set(self);
    }

    pub(crate) fn held() -> usize {
        METER.get().map_or(0, |meter| (meter.held)())
    }

    pub(crate) fn peak() -> usize {
        METER.get().map_or(0, |meter| (meter.peak)())
    }
}

/// Runs sessions of the target `proxy_session` by their numbers, without a fuzzer: many in a row, of which each
/// number always means the same. Says on stderr how far it is.
///
/// # Panics
/// When one does not keep its promise.
pub fn proxy_sessions(numbers: Range<u32>) {
    proxy::fuzzing::numbered_sessions(numbers);
}

/// The bytes of an input behind its first one, which says into pieces of what sizes they are cut.
pub(crate) fn pieces(input: &[u8]) -> (&[u8], impl Iterator<Item = &[u8]> + Clone) {
    let (seed, bytes) = input.split_first().map_or((0, input), |(seed, bytes)| (*seed, bytes));
    let (mut rest, mut state) = (bytes, u32::from(seed));
    let cut = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // With 0 they stay whole; up to 15 there are short ones only.
        let most = if seed == 0 { rest.len() } else { 1 + usize::from(seed) / 2 };
        let size = if seed == 0 { most } else { 1 + (state >> 16) as usize % most };
        let (piece, more) = rest.split_at(size.min(rest.len()));
        rest = more;
        (!piece.is_empty()).then_some(piece)
    };
    (bytes, iter::from_fn(cut))
}

/// What the coordinator reads from a proxy: what is understood means the same when it is written again.
fn row_stream(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(line) = serde_json::from_slice::<ProxyLine>(line) {
            let again = serde_json::to_string(&line).ok();
            let again = again.and_then(|text| serde_json::from_str::<ProxyLine>(&text).ok());
            assert_eq!(again, Some(line));
        }
        let _ = serde_json::from_slice::<ClockAnswer>(line);
    }
}

fn target_file(bytes: &[u8]) {
    let _ = load::targets::parse(&String::from_utf8_lossy(bytes), |path| Ok(path.as_bytes().to_vec()));
}

fn read_scenario(bytes: &[u8]) {
    // Below a folder that is none, no manifest file is read.
    let nowhere = Path::new("/dev/null");
    let _ = scenario::parse::<Value>(&String::from_utf8_lossy(bytes), "scenario.yaml", nowhere, &[]);
}

/// Paths with their parameters, and the selectors among these.
fn api_query(bytes: &[u8]) {
    embedded::api::fuzzing::path(bytes);
    let text = String::from_utf8_lossy(bytes);
    let (labels, fields) = text.split_once('\n').unwrap_or((&text, ""));
    if let Ok(selection) = Selection::parse(Resource::Pods, labels, fields) {
        let pod = serde_json::json!({"metadata": {"name": "a", "labels": {"app": "web"}}});
        let _ = selection.matches(&pod);
    }
}
