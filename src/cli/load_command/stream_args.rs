//! Options of `rolldrop load` for responses that are streams.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::parse_duration;
use rolldrop_record::LengthLaw;
use rolldrop_record::load::{EndPattern, StreamKind, StreamSettings, defaults, in_units};

/// Heading of these options in `--help`.
const STREAMS: &str = "Streams";

/// Options of streams.
#[derive(Debug, clap::Args)]
pub(super) struct StreamArgs {
    /// Expect each response to be a stream, ok only if complete: openai, anthropic, sse, ndjson, or bytes for downloads
    #[arg(long, value_name = "KIND", help_heading = STREAMS)]
    stream: Option<StreamKind>,
    /// Pattern for the data of a stream's last event, instead of the kind's usual last event
    #[arg(long, value_name = "REGEX", requires = "stream", help_heading = STREAMS)]
    stream_end: Option<EndPattern>,
    /// Finish reason that counts as success; repeatable [default: the model's own, such as stop]
    #[arg(long = "finish-reason", value_name = "REASON", requires = "stream", help_heading = STREAMS)]
    finish_reasons: Vec<String>,
    /// Longest gap between two bytes of a stream
    #[arg(long, default_value = in_units(defaults::STALL_TIMEOUT), value_parser = parse_duration, value_name = "D",
        help_heading = STREAMS)]
    stall_timeout: Duration,
    /// Stream lengths to request from the sample server: fixed:30s, lognormal:MEDIAN,SIGMA, exp:MEAN, or file:PATH with
    /// one per line
    #[arg(long, value_name = "LAW", requires = "stream", value_parser = LengthLaw::read, help_heading = STREAMS)]
    length: Option<LengthLaw>,
    /// Maximum number of open streams [default: 20000, or fewer if descriptors or ports run out]
    #[arg(long, value_name = "N", requires = "stream", help_heading = STREAMS,
        value_parser = clap::value_parser!(u64).range(1..))]
    max_open: Option<u64>,
}

impl StreamArgs {
    /// Returns the settings; `None` without `--stream`.
    pub(super) fn settings(&self) -> Option<StreamSettings> {
        let reasons: BTreeSet<String> = self.finish_reasons.iter().cloned().collect();
        self.stream.map(|kind| StreamSettings {
            kind,
            end: self.stream_end.clone(),
            finish_reasons: Some(reasons).filter(|reasons| !reasons.is_empty()),
            stall_timeout: self.stall_timeout,
            length: self.length.clone(),
            max_open: self.max_open.and_then(|most| usize::try_from(most).ok()),
        })
    }
}
