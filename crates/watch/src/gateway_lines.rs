//! The access logs that `--logs` names: reads their lines, and counts those that it cannot read.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;

use crate::declared_consumers::DeclaredConsumers;
use crate::error::{Result, WatchError};
use crate::read_sidecars::ReadSidecars;
use crate::viewer::WatchViewer;
use rolldrop_accesslog::LogFormat;
use rolldrop_drive::collect::{JournalDelivery, SidecarSource};
use rolldrop_drive::observe::{LogDelivery, LogDeliveryKind, LogSource};
use rolldrop_explain::gateway_traffic::{GatewayTraffic, LINES_WITHIN_NS};
use rolldrop_explain::model::{LogGap, TerminationTraffic, WatchedTermination};
use rolldrop_record::{EventKind, RunId, Stamp};
use rolldrop_report::LogReading;

/// Number of lines that are read before a log is taken to be in a different format.
const TRIED: u64 = 10;

/// Value of `--logs`: a source and its format.
#[derive(Clone, Debug)]
pub struct LogArg {
    /// The source, as given by the user.
    pub(crate) name: String,
    pub(crate) source: LogSource,
    format: LogFormat,
}

impl FromStr for LogArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let Some((source, format)) = text.split_once('=') else {
            return Err(format!(
                "{text:?} names no format: use SOURCE=FORMAT, such as edge/deployment/envoy=envoy-json"
            ));
        };
        let format = format.parse().map_err(|error| format!("{text:?}: {error}"))?;
        Ok(Self { name: source.to_owned(), source: source.parse()?, format })
    }
}

/// Requests in these logs, and in the journals of sidecars.
pub(crate) struct GatewayLines {
    logs: Vec<LogArg>,
    sidecars: ReadSidecars,
    traffic: GatewayTraffic,
    declared: DeclaredConsumers,
    /// Counts of the lines that were read, by log, with the number of the first argument that names it.
    read: BTreeMap<Arc<str>, (usize, LogReading)>,
    /// Logs that later arguments name as well.
    named_twice: BTreeSet<Arc<str>>,
    viewer: Arc<dyn WatchViewer>,
}

impl GatewayLines {
    /// Starts without lines. `begun` is the time from which the logs are read.
    pub(crate) fn of(
        logs: &[LogArg],
        sidecars: &[SidecarSource],
        begun: Stamp,
        viewer: Arc<dyn WatchViewer>,
    ) -> Self {
        Self {
            logs: logs.to_vec(),
            sidecars: ReadSidecars::of(sidecars),
            traffic: GatewayTraffic::new(RunId::random(), begun),
            declared: DeclaredConsumers::default(),
            read: BTreeMap::new(),
            named_twice: BTreeSet::new(),
            viewer,
        }
    }

    /// Processes an event of the watches.
    pub(crate) fn observe(&mut self, at: Stamp, namespace: Option<&str>, kind: &EventKind) {
        self.traffic.observe(at, kind);
        if let EventKind::Workload(event) = kind {
            self.declared.observe(namespace.unwrap_or_default(), event, &*self.viewer);
        }
    }

    /// Returns the time after which all lines about a pod that is gone have been read. A sidecar ends before its pod.
    pub(crate) fn complete_within_ns(&self) -> i64 {
        if self.logs.is_empty() { 0 } else { LINES_WITHIN_NS }
    }

    /// Explains the effect of a termination on requests.
    ///
    /// # Errors
    /// Does not fail, as all requests are in memory.
    pub(crate) fn explain(
        &mut self,
        end: &WatchedTermination,
        until: Stamp,
    ) -> Result<Option<TerminationTraffic>> {
        let mut traffic = self.traffic.explain(end, until)?;
        if let Some(traffic) = &mut traffic {
            traffic.consumers.declared = self.declared.of(end).cloned();
        }
        Ok(traffic)
    }

    /// Forgets what no later termination needs.
    pub(crate) fn forget_before(&mut self, now: Stamp) {
        self.traffic.forget_before(now);
    }

    /// Processes what a log delivered. Returns the gap, if lines may be missing from now on.
    ///
    /// # Errors
    /// Fails if none of the first lines of a log is in its format.
    pub(crate) fn take(&mut self, now: Stamp, delivery: LogDelivery) -> Result<Option<LogGap>> {
        let LogDelivery { number, source, kind } = delivery;
        let reading = || {
            self.traffic.add_log(Arc::clone(&source), self.logs[number].source.to_string());
            (number, LogReading { source: source.to_string(), ..LogReading::default() })
        };
        let (first, read) = self.read.entry(Arc::clone(&source)).or_insert_with(reading);
        if *first != number {
            // Each of its requests would count twice.
            if self.named_twice.insert(Arc::clone(&source)) {
                self.viewer
                    .say(&format!("warning: --logs names the log {source} twice: only the first one counts"));
            }
            return Ok(None);
        }
        let (traffic, viewer) = (&mut self.traffic, &*self.viewer);
        match kind {
            LogDeliveryKind::Line { arrived, bytes, .. } => match self.logs[number].format.parse(&bytes) {
                Ok(None) => {}
                Ok(Some(line)) if line.earliest == Stamp::default() => {
                    unreadable(
                        read,
                        traffic,
                        viewer,
                        now,
                        "it does not show how long the request took".to_owned(),
                    );
                }
                Ok(Some(line)) => {
                    read.lines += 1;
                    if let Some(retries) = line.retries() {
                        *read.retries.get_or_insert(0) += retries;
                        *read.saved_by_retries.get_or_insert(0) +=
                            u64::from(retries > 0 && line.has_succeeded());
                    }
                    traffic.add(&source, arrived, &line);
                }
                // A client can make a line of its own unreadable, but not all of them.
                Err(error) if read.lines == 0 && read.unreadable + 1 >= TRIED => {
                    return Err(WatchError::LogFormat {
                        tried: TRIED,
                        log: source.to_string(),
                        format: self.logs[number].format.to_string(),
                        why: error.to_string(),
                    });
                }
                Err(error) => unreadable(read, traffic, viewer, now, error.to_string()),
            },
            LogDeliveryKind::LongLine { length, .. } => {
                unreadable(read, traffic, viewer, now, format!("it has {length} bytes"));
            }
            LogDeliveryKind::Interrupted { from } => traffic.interrupt(&source, from),
            LogDeliveryKind::Resumed => traffic.resume(&source),
            LogDeliveryKind::Gap { from, to, why } => {
                let gap = LogGap {
                    source: source.to_string(),
                    from_ns: from,
                    to_ns: Some(to),
                    why: Some(why.to_owned()),
                };
                traffic.add_gap(gap.clone());
                return Ok(Some(gap));
            }
            LogDeliveryKind::Stopped { why } => {
                traffic.resume(&source);
                let gap = LogGap { source: source.to_string(), from_ns: now, to_ns: None, why: Some(why) };
                traffic.add_gap(gap.clone());
                return Ok(Some(gap));
            }
        }
        Ok(None)
    }

    /// Processes what a sidecar's journal delivered. Returns the gap, if rows may be missing.
    pub(crate) fn take_journal(&mut self, delivery: JournalDelivery) -> Option<LogGap> {
        self.sidecars.take(&mut self.traffic, delivery, &*self.viewer)
    }

    /// Returns the sidecars that this argument names.
    pub(crate) fn sidecar_name(&self, number: usize) -> &str {
        self.sidecars.name(number)
    }

    /// Returns the source that this argument names.
    pub(crate) fn name(&self, number: usize) -> &str {
        &self.logs[number].name
    }

    /// Returns, for each log, the name of its source and the number of lines that could not be read.
    pub(crate) fn unread(&self) -> impl Iterator<Item = (&str, u64)> {
        self.read.values().map(|(number, read)| (self.logs[*number].name.as_str(), read.unreadable))
    }

    /// Returns the sources with a log that cannot be read at the moment.
    pub(crate) fn interrupted(&self) -> impl Iterator<Item = &str> {
        let read = self.traffic.interrupted().filter_map(|log| self.read.get(log));
        read.map(|(number, _)| self.logs[*number].name.as_str()).chain(self.sidecars.unread())
    }

    /// Returns what was read from each log.
    pub(crate) fn readings(&self) -> impl Iterator<Item = &LogReading> {
        self.read.values().map(|(_, read)| read)
    }
}

/// Counts a line that could not be read, and warns about the first one.
fn unreadable(
    read: &mut LogReading,
    traffic: &mut GatewayTraffic,
    viewer: &dyn WatchViewer,
    now: Stamp,
    why: String,
) {
    traffic.add_unreadable(&read.source, now);
    read.unreadable += 1;
    if read.example.is_none() {
        viewer.say(&format!("warning: a line of the log {} could not be read: {why}", read.source));
        read.example = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::viewer::NoViewer;

    #[test]
    fn log_named_twice_counts_once() {
        let logs = ["edge/deployment/web=caddy", "edge/pod/web-x=caddy"].map(|log| log.parse().unwrap());
        let mut lines = GatewayLines::of(&logs, &[], Stamp::default(), Arc::new(NoViewer));
        let bytes = br#"{"level":"info","logger":"http.log.access","ts":1795947833.5,"request":{},"duration":0.1,"size":2,"status":200}"#;
        for number in [1, 0, 1, 1] {
            let (arrived, bytes) = (Stamp::default(), bytes[..].into());
            let kind = LogDeliveryKind::Line { written: None, arrived, bytes };
            let delivery = LogDelivery { number, source: "edge/web-x/web".into(), kind };
            assert_eq!(lines.take(arrived, delivery).unwrap(), None);
        }
        let read: Vec<_> = lines.readings().map(|read| (read.lines, read.unreadable)).collect();
        assert_eq!((read, lines.unread().next()), (vec![(3, 0)], Some(("edge/pod/web-x", 0))));
    }
}
