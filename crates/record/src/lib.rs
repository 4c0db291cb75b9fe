//! The data model of a run, and its on-disk format.
//!
//! The measuring side (load, proxy, coordinator) writes these types; the judging side (timeline, analysis) reads them.
//! This crate contains no Kubernetes client, no HTTP and no statistics. `docs/run-directory.md` documents the run
//! directory format.

mod action;
mod cause;
pub mod clock;
mod clock_offset;
pub mod event;
mod evidence;
pub mod expect;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod id;
mod length_law;
pub mod load;
mod logged_request;
mod looks;
pub mod metrics_text;
mod mode;
mod names;
pub mod outcome;
pub mod parts;
mod policy;
pub mod retry;
mod rounds;
mod row_source;
pub mod row_values;
pub mod run_dir;
pub mod run_info;
mod secret;
pub mod service_proxy;
pub mod shown;
pub mod stage;
mod stream_end;
pub mod termination_store;
mod timing;
pub mod units;
pub mod wire;

pub use action::EndCause;
pub use cause::Cause;
pub use clock::{Clock, Stamp};
pub use clock_offset::{ClockOffset, Offsets};
pub use event::{Event, EventKind};
pub use evidence::{Evidence, UnknownEvidence};
pub use expect::{Bounds, Expect};
pub use id::{RequestId, RunId};
pub use length_law::{LENGTH_HEADER, LengthLaw, LengthLawError};
pub use logged_request::{LoggedAttempt, LoggedRequest, LoggedUpstream, SERVER_ERROR};
pub use looks::{ALPHA, Looks, Spending};
pub use mode::Mode;
pub use outcome::Outcome;
pub use policy::Policy;
pub use rounds::{Rounds, RoundsEnd};
pub use row_source::{LIVE_DIR, RowSource, Tables};
pub use row_values::{
    GapRow, Phase, Protocol, RequestRow, ServedEnd, ServedKey, ServedRow, StreamRow, TlsSession,
};
pub use run_dir::{Records, RunDir, RunDirError, RunLog};
pub use run_info::{RunInfo, routing};
pub use secret::Secret;
pub use stream_end::{StreamEnd, UnknownStreamEnd};
