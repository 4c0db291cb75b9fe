//! Fuzz targets for everything that clients, apps and admin port users may send.

#![expect(clippy::print_stderr, reason = "fuzzing shows its progress")]

mod fuzzed_session;

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::origin::RowOrigin;
use super::{Budget, PodHeader, ProxyConfig, ProxyState, h2};
use rolldrop_record::Clock;

rolldrop_testing::targets! {
    http1_requests: crate::h1::fuzzing::requests,
    http1_responses: crate::h1::fuzzing::responses,
    http2: super::http2,
    admin: crate::admin::fuzz,
    proxy_session[slow]: super::fuzzed_session::run,
}

/// Fuzzes both directions of an HTTP/2 connection.
fn http2(input: &[u8]) {
    h2::fuzzing::connection(input, origin);
}

/// Runs numbered sessions of the target `proxy_session`, without a fuzzer. A number always means the same session.
/// Prints progress to stderr.
///
/// # Panics
/// Panics if a session violates an invariant; stderr then shows the session's number.
pub fn numbered_sessions(numbers: Range<u32>) {
    const SAID_EVERY: u32 = 10_000;
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let number = NUMBER.load(Ordering::Relaxed);
        eprintln!("in session {number}, whose input is {:02x?}", fuzzed_session::numbered(number));
        before(panic);
    }));
    let (begun, last, mut steps) = (Instant::now(), numbers.end.saturating_sub(1), 0);
    for number in numbers {
        NUMBER.store(number, Ordering::Relaxed);
        steps += fuzzed_session::run(&fuzzed_session::numbered(number));
        if number == last || (number + 1).is_multiple_of(SAID_EVERY) {
            let seconds = begun.elapsed().as_secs();
            eprintln!("DONE up to session {number}, {steps} steps, {seconds} s");
        }
    }
}

/// Returns a connection without an app.
pub(super) fn origin(has_pod_header: bool) -> Arc<RowOrigin> {
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = ProxyConfig {
        pod_header: if has_pod_header { PodHeader::Added } else { PodHeader::Omitted },
        budget: Budget { rows: 10, unanswered_rows: 5, ..Budget::DEFAULT },
        ..ProxyConfig::bare(nowhere)
    };
    let shared = ProxyState::new(&config, Clock::start());
    let accepted = shared.clock.now();
    Arc::new(RowOrigin::new(Arc::new(shared), nowhere, accepted, 0))
}
