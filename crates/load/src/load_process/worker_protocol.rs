//! The protocol between the run and a load worker's process. Each line is a JSON object; orders go to the worker, and
//! reports come from it.
//!
//! | order | response |
//! |---|---|
//! | `prepare` | `ready`, once the targets respond to the worker; if repeated before `start`, the last one counts |
//! | `clock` | `clock` immediately, at any time after `ready` |
//! | `start` | `progress`, `machine` and `event` repeatedly, `ended` at the end |
//! | `stop` | the schedule ends; requests in flight end normally |
//! | `abort` | the schedule ends, and requests in flight are cut off |
//! | end of input | same as after `abort`; then the process exits |
//!
//! A `failed` report may replace any response, and is always the last one. Rows are not part of the protocol; they go
//! to the run directory that the process was given when it was started.
//!
//! A worker in a pod accepts the same orders over HTTP ([`crate::remote`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::control::Progress;
use crate::load_plan::ThreadShare;
use crate::source_port_pool::PortsBefore;
use rolldrop_record::event::MachineSample;
use rolldrop_record::load::Load;
use rolldrop_record::{Event, RunId, Stamp};

/// Order to a load worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the orders say what their fields are")]
pub enum WorkerOrder {
    /// Prepare this load. This must be the first order.
    Prepare(Box<Prepare>),
    /// Report the time; the response repeats the number.
    Clock { n: u64 },
    /// Begin the schedule, with its zero given on the worker's clock, so that several workers can begin together.
    Start { zero_ns: Stamp },
    /// End the schedule.
    Stop,
    /// End the schedule, and cut off the requests in flight.
    Abort,
}

/// Load to prepare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepare {
    /// Settings of the load. Header values may be secrets, so they are sent here but never stored.
    pub settings: Load,
    /// Random part of the request ids.
    pub run: RunId,
    /// Time limit for the first response of each target.
    pub first_answer_limit: Duration,
    /// Part of the load that this worker sends; `None` for the whole load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ThreadShare>,
    /// Position in the source ports at which earlier loads stopped; `None` if the worker itself knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<PortsBefore>,
}

/// End of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadEnd {
    /// Time the last request ended, on the worker's clock.
    #[serde(rename = "t_ns")]
    pub at: Stamp,
    /// Number of scheduled requests, including the warm-up; each has a row.
    pub scheduled: u64,
    /// Position in the source ports at which the load stopped; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortsBefore>,
}

/// Report from a load worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the reports say what their fields are")]
pub enum WorkerReport {
    /// Every target has responded. Contains the names of the worker's sources, which share the process's clock, and
    /// warnings to show before the load starts.
    Ready { sources: Vec<String>, warnings: Vec<String> },
    /// The time on the worker's clock, with the number of the order.
    Clock { n: u64, now_ns: Stamp },
    /// The progress of the load.
    Progress(Progress),
    /// A sample of how busy the process and its machine are, over an interval that ends at this time on the worker's
    /// clock.
    Machine { t_ns: Stamp, sample: MachineSample },
    /// An event other than a request; its stamp is on the worker's clock.
    Event(Event),
    /// Every scheduled request has a row on disk.
    Ended(LoadEnd),
    /// The worker cannot continue; includes the reason.
    Failed { why: String },
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ErrorStatuses;

    #[test]
    fn protocol_lines_match_documented_json() {
        let line = |order: &WorkerOrder| serde_json::to_string(order).unwrap();
        assert_eq!(line(&WorkerOrder::Stop), r#""stop""#);
        assert_eq!(line(&WorkerOrder::Clock { n: 3 }), r#"{"clock":{"n":3}}"#);
        let progress = WorkerReport::Progress(Progress { scheduled: 7, ..Progress::default() });
        let text = serde_json::to_string(&progress).unwrap();
        assert_eq!(
            text,
            r#"{"progress":{"scheduled":7,"in_flight":0,"outcomes":{},"warmup":{},"recent":null}}"#
        );
        assert_eq!(serde_json::from_str::<WorkerReport>(&text).unwrap(), progress);
        let error_statuses =
            ErrorStatuses { http: BTreeMap::from([(503, 2)]), grpc: BTreeMap::from([(14, 1)]) };
        let progress = WorkerReport::Progress(Progress { error_statuses, ..Progress::default() });
        let text = serde_json::to_string(&progress).unwrap();
        assert!(text.contains(r#""error_statuses":{"503":2},"grpc_statuses":{"14":1}"#), "{text}");
        assert_eq!(serde_json::from_str::<WorkerReport>(&text).unwrap(), progress);
        let prepare = WorkerOrder::Prepare(Box::new(Prepare {
            settings: Load::new("http://web/"),
            run: RunId::random(),
            first_answer_limit: Duration::from_secs(1),
            share: Some(ThreadShare { first: 2, of: 4 }),
            before: Some(PortsBefore { next: 40000, taken: 7, since_s: 1 }),
        }));
        assert_eq!(serde_json::from_str::<WorkerOrder>(&line(&prepare)).unwrap(), prepare);
    }
}
