//! Data of a history's chart: the worst workloads, and losses and kills by hour or day.

use super::{ReportedWorkload, WatchReport};
use crate::charts::watch_chart::{WatchBin, WatchRow, WatchSeries};
use crate::format::{count, counted, len, rfc3339_seconds};
use crate::watch_lines::{lost, name};
use rolldrop_explain::model::Bounded;
use rolldrop_record::Stamp;

/// Maximum length in hours of a history that the chart shows by hour. It shows longer ones by day, for at most a year.
const HOURLY: i64 = 48;
const MOST_BINS: usize = 366;
const HOUR_NS: i64 = 3_600_000_000_000;

/// An hour of a history.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HourOfWatch {
    pub(super) lost: Bounded,
    pub(super) killed: u64,
}

impl WatchReport {
    /// Returns the data of the chart.
    pub(super) fn series(&self) -> WatchSeries {
        let is_bad =
            |row: &WatchRow| row.killed > 0 || row.lost.as_ref().is_some_and(|(lost, _)| lost.at_most > 0);
        let rows = self.workloads.iter().map(|ReportedWorkload { of, .. }| WatchRow {
            name: name(of),
            terminations: of.terminations,
            lost: of.traffic.as_ref().map(|traffic| (traffic.lost, lost(of, traffic))),
            killed: of.killed_at_grace_end,
        });
        let rows: Vec<WatchRow> = rows.filter(is_bad).collect();
        let with_logs = self.workloads.iter().filter(|of| of.of.traffic.is_some()).count();
        let found = match with_logs {
            0 => "had pods killed; losses are unknown",
            _ => "lost requests or had pods killed",
        };
        let all = counted(len(self.workloads.len()), "workload");
        let title = match (self.watched.is_empty(), self.workloads.is_empty()) {
            (true, true) => "No watch is known to have run in this period".to_owned(),
            (false, true) => "The watch saw no pod end in this period".to_owned(),
            _ => format!("{} of {all} {found}", count(len(rows.len()))),
        };
        let logs = match with_logs {
            0 => "no gateway log names their pods".to_owned(),
            of => format!("gateway logs name the pods of {}", counted(len(of), "workload")),
        };
        let subtitle = format!("{}; {logs}", self.headline());
        let (bin, length, label): (_, i64, fn(&str) -> String) = match hours(self.to_ns) - hours(self.from_ns)
        {
            ..=HOURLY => ("hour", 1, |at| at[11..16].to_owned()),
            _ => ("day", 24, |at| at[5..10].to_owned()),
        };
        let first = hours(self.from_ns).div_euclid(length);
        let bins = (first..=hours(self.to_ns).div_euclid(length)).map(|number| {
            let at = Stamp::from_unix_ns(number.saturating_mul(length * HOUR_NS));
            let mut bin = WatchBin { label: label(&rfc3339_seconds(at)), ..WatchBin::default() };
            for hour in self.by_hour.range(number * length..(number + 1) * length).map(|(_, hour)| hour) {
                bin.lost.merge(&hour.lost);
                bin.killed += hour.killed;
            }
            bin
        });
        let begin = Stamp::from_unix_ns(first.saturating_mul(length * HOUR_NS));
        let bins_since = |at: Stamp| at.ns_since(begin) as f64 / (length * HOUR_NS) as f64;
        let missing = self.watched.iter().flat_map(|scope| &scope.unwatched);
        let unwatched = match self.watched.is_empty() {
            true => vec![(bins_since(self.from_ns), bins_since(self.to_ns))],
            false => missing.map(|span| (bins_since(span.from_ns), bins_since(span.to_ns))).collect(),
        };
        WatchSeries { title, subtitle, rows, bins: bins.take(MOST_BINS).collect(), bin, unwatched }
    }
}

/// Returns the whole hours since 1970.
pub(super) fn hours(at: Stamp) -> i64 {
    at.ns_since(Stamp::from_unix_ns(0)).div_euclid(HOUR_NS)
}
