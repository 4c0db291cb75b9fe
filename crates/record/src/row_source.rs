//! The rows of a run. They may not fit into memory, so readers make as many passes as they need.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::parts::{self, ClosedPart, Lane, PartError, Row, checksum};
use super::{GapRow, RequestRow, ServedRow, StreamRow};

/// Directory for rows transferred from remote load sources during the load. It is removed once all other rows have
/// arrived.
pub const LIVE_DIR: &str = "live";

/// A source of a run's rows. Every pass sees the same rows.
pub trait RowSource: Debug + Send + Sync {
    /// Returns the number of lanes needed to use all processors.
    fn lanes(&self) -> usize;

    /// Passes the rows of the load sources to the lanes, which work in parallel. Each lane gets a share of the rows,
    /// and the first lane gets the first rows.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    fn requests(&self, lanes: &mut [&mut dyn Lane<RequestRow>]) -> Result<(), PartError>;

    /// Passes the streams of the load sources to the lanes in the same way.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    fn streams(&self, lanes: &mut [&mut dyn Lane<StreamRow>]) -> Result<(), PartError>;

    /// Passes the times between events of these streams to the lanes in the same way.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    fn gaps(&self, lanes: &mut [&mut dyn Lane<GapRow>]) -> Result<(), PartError>;

    /// Returns true if proxies recorded any rows.
    fn has_served(&self) -> bool;

    /// Passes the rows of the proxies to the lanes in the same way.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    fn served(&self, lanes: &mut [&mut dyn Lane<ServedRow>]) -> Result<(), PartError>;
}

/// Distributes the rows evenly over the lanes.
pub(super) fn give<R: Row>(rows: &[R], lanes: &mut [&mut dyn Lane<R>]) {
    let each = rows.len().div_ceil(lanes.len().max(1)).max(1);
    for (rows, lane) in rows.chunks(each).zip(lanes) {
        for row in rows {
            let wanted = lane.wanted();
            lane.row().take_from(row, wanted);
            lane.take();
        }
    }
}

/// Maximum number of lanes. It is limited because each lane keeps its own sums in memory.
const MOST_LANES: usize = 8;

/// The tables of a run directory.
#[derive(Debug)]
pub struct Tables {
    /// Readable parts of each table.
    requests: Vec<ClosedPart>,
    streams: Vec<ClosedPart>,
    gaps: Vec<ClosedPart>,
    served: Vec<ClosedPart>,
    /// Rows that no part contains: those transferred during the load from sources whose other rows were not fetched,
    /// and those of streams and responses that were open when their recorder was killed or the run ended.
    loose_requests: Vec<RequestRow>,
    loose_streams: Vec<StreamRow>,
    loose_served: Vec<ServedRow>,
}

/// Identifies a request, or its stream, within a run.
type RowKey = (Arc<str>, u64);

fn request_key(row: &RequestRow) -> RowKey {
    (Arc::clone(&row.source), row.seq)
}

fn stream_key(row: &StreamRow) -> RowKey {
    (Arc::clone(&row.source), row.seq)
}

impl Tables {
    /// Opens the tables of a run directory. Adds notes about missing rows to `torn`. Damaged parts are skipped and
    /// listed in `corrupt`.
    pub(super) fn open(
        run_dir: &Path,
        torn: &mut Vec<String>,
        corrupt: &mut Vec<String>,
    ) -> Result<Self, PartError> {
        let (requests, open_requests) = whole_parts::<RequestRow>(run_dir, corrupt)?;
        let (streams, open_streams) = whole_parts::<StreamRow>(run_dir, corrupt)?;
        let (gaps, _) = whole_parts::<GapRow>(run_dir, corrupt)?;
        let (served, open_served) = whole_parts::<ServedRow>(run_dir, corrupt)?;
        let mut live = parts::read_table::<RequestRow>(&run_dir.join(LIVE_DIR))?;
        retain_missing(&mut live, &requests, request_key)?;
        if !live.is_empty() {
            let sources: HashSet<&str> = live.iter().map(|row| &*row.source).collect();
            torn.push(format!(
                "from some load sources, only the rows of requests that were not ok were fetched (sources: {}, rows: {})",
                sources.len(),
                live.len()
            ));
        }
        let mut cut_off = parts::read_rows::<RequestRow>(&open_requests)?;
        retain_missing(&mut cut_off, &requests, request_key)?;
        if !cut_off.is_empty() {
            torn.push(format!(
                "streams whose ends are unknown, because their recorder was lost while they were open: {}",
                cut_off.len()
            ));
        }
        let mut loose_streams = parts::read_rows::<StreamRow>(&open_streams)?;
        retain_missing(&mut loose_streams, &streams, stream_key)?;
        let mut loose_served = parts::read_rows::<ServedRow>(&open_served)?;
        retain_missing(&mut loose_served, &served, ServedRow::key)?;
        let loose_requests = live.into_iter().chain(cut_off).collect();
        let open = |paths: Vec<PathBuf>| paths.into_iter().map(ClosedPart::open).collect::<Result<_, _>>();
        Ok(Self {
            requests: open(requests)?,
            streams: open(streams)?,
            gaps: open(gaps)?,
            served: open(served)?,
            loose_requests,
            loose_streams,
            loose_served,
        })
    }
}

/// Keeps only the rows that none of these parts contains.
fn retain_missing<R: Row, K: Eq + Hash + Send>(
    rows: &mut Vec<R>,
    parts: &[PathBuf],
    key: fn(&R) -> K,
) -> Result<(), PartError> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut missing: HashSet<K> = rows.iter().map(key).collect();
    parts::each_row_of::<R>(parts, |row| {
        missing.remove(&key(row));
    })?;
    rows.retain(|row| missing.contains(&key(row)));
    Ok(())
}

/// Returns the undamaged parts of a table, and the undamaged files with unfinished rows. Lists the others in `corrupt`.
fn whole_parts<R: Row>(
    run_dir: &Path,
    corrupt: &mut Vec<String>,
) -> Result<(Vec<PathBuf>, Vec<PathBuf>), PartError> {
    let mut paths = parts::parts_of::<R>(run_dir)?;
    let mut failed = None;
    paths.retain(|path| match checksum::damage(path) {
        Ok(None) => true,
        Ok(Some(why)) => {
            let name = path.strip_prefix(run_dir).unwrap_or(path).display();
            corrupt.push(format!("{name} is corrupt: {why}; its rows are left out"));
            false
        }
        Err(source) => {
            failed.get_or_insert(PartError::Io { path: path.clone(), source });
            false
        }
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(paths.into_iter().partition(|path| !parts::is_open(path))),
    }
}

impl RowSource for Tables {
    fn lanes(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from).min(MOST_LANES)
    }

    fn requests(&self, lanes: &mut [&mut dyn Lane<RequestRow>]) -> Result<(), PartError> {
        parts::read_side_by_side(&self.requests, lanes)?;
        give(&self.loose_requests, lanes);
        Ok(())
    }

    fn streams(&self, lanes: &mut [&mut dyn Lane<StreamRow>]) -> Result<(), PartError> {
        parts::read_side_by_side(&self.streams, lanes)?;
        give(&self.loose_streams, lanes);
        Ok(())
    }

    fn gaps(&self, lanes: &mut [&mut dyn Lane<GapRow>]) -> Result<(), PartError> {
        parts::read_side_by_side(&self.gaps, lanes)
    }

    fn has_served(&self) -> bool {
        !self.served.is_empty() || !self.loose_served.is_empty()
    }

    fn served(&self, lanes: &mut [&mut dyn Lane<ServedRow>]) -> Result<(), PartError> {
        parts::read_side_by_side(&self.served, lanes)?;
        give(&self.loose_served, lanes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::{PartWriter, Wanted};
    use crate::{Clock, Phase, ServedEnd, Stamp, StreamEnd};

    #[test]
    fn open_rows_are_counted_only_after_kill() {
        let dir = tempfile::tempdir().unwrap();
        let at = Stamp::from_unix_ns(0);
        let request = |seq| RequestRow::not_sent("load-0".into(), seq, "web".into(), Phase::Main, at, at);
        let stream = |seq| StreamRow {
            source: "load-0".into(),
            seq,
            first_event: None,
            last_event: None,
            events: seq,
            bytes: 0,
            tokens: None,
            longest_gap: None,
            gap_start: None,
            terminal: StreamEnd::Cancelled,
            goodbye: None,
        };
        let mut writer = PartWriter::<RequestRow>::create(dir.path(), "load-0", Clock::start()).unwrap();
        writer.extend(&[request(0), request(1)]).unwrap();
        writer.finish().unwrap();
        let mut writer = PartWriter::<StreamRow>::create(dir.path(), "load-0", Clock::start()).unwrap();
        writer.extend(&[stream(0), stream(1)]).unwrap();
        writer.finish().unwrap();
        parts::replace_open(dir.path(), "load-0", &[request(3)]).unwrap();
        parts::replace_open(dir.path(), "load-0", &[request(1), request(2)]).unwrap();
        parts::replace_open(dir.path(), "load-0", &[stream(1), stream(2)]).unwrap();
        let read = || {
            let (mut torn, mut corrupt) = (Vec::new(), Vec::new());
            let tables = Tables::open(dir.path(), &mut torn, &mut corrupt).unwrap();
            let (mut requests, mut streams) = (Vec::new(), Vec::new());
            tables.requests(&mut [&mut parts::each(|row: &RequestRow| requests.push(row.seq))]).unwrap();
            tables.streams(&mut [&mut parts::each(|row: &StreamRow| streams.push(row.events))]).unwrap();
            (requests, streams, torn)
        };
        let (requests, streams, torn) = read();
        assert_eq!((requests, streams), (vec![0, 1, 2], vec![0, 1, 2]));
        assert_eq!(
            torn,
            ["streams whose ends are unknown, because their recorder was lost while they were open: 1"]
        );

        parts::replace_open::<RequestRow>(dir.path(), "load-0", &[]).unwrap();
        parts::replace_open::<StreamRow>(dir.path(), "load-0", &[]).unwrap();
        parts::replace_open::<StreamRow>(dir.path(), "load-0", &[]).unwrap();
        assert_eq!(read(), (vec![0, 1], vec![0, 1], vec![]));
    }

    #[test]
    fn open_response_is_counted_until_end_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let row = |conn, head, ended| {
            let line = serde_json::json!({
                "source": "web-1", "pod": "web-1", "peer_addr": "", "protocol": "http1", "accepted": 0,
                "head": head, "end": 9, "ended": ended, "conn": conn, "conn_first_request": false,
            });
            serde_json::from_value::<ServedRow>(line).unwrap()
        };
        let (open, complete) = (ServedEnd::Open.as_str(), ServedEnd::Complete.as_str());
        let mut writer = PartWriter::<ServedRow>::create(dir.path(), "web-1", Clock::start()).unwrap();
        writer.extend(&[row(0, 1, complete), row(0, 2, complete)]).unwrap();
        parts::replace_open(dir.path(), "web-1", &[row(0, 2, open), row(0, 3, open), row(1, 1, open)])
            .unwrap();
        let read = || {
            let tables = Tables::open(dir.path(), &mut Vec::new(), &mut Vec::new()).unwrap();
            assert!(tables.has_served());
            let mut served = Vec::new();
            tables.served(&mut [&mut parts::each(|row: &ServedRow| served.push(row.clone()))]).unwrap();
            served
        };
        assert_eq!(read(), [row(0, 2, open), row(0, 3, open), row(1, 1, open)]);
        writer.finish().unwrap();
        assert_eq!(read(), [row(0, 1, complete), row(0, 2, complete), row(0, 3, open), row(1, 1, open)]);
    }

    #[test]
    fn live_rows_fill_gaps_without_duplicates() {
        let dir = tempfile::tempdir().unwrap();
        let at = Stamp::from_unix_ns(0);
        let rows = |seqs: std::ops::Range<u64>| -> Vec<_> {
            let row = |seq| RequestRow::not_sent("load-0".into(), seq, "web".into(), Phase::Main, at, at);
            seqs.map(row).collect()
        };
        let write = |dir: &Path, source: &str, rows: &[RequestRow]| {
            let mut writer = PartWriter::<RequestRow>::create(dir, source, Clock::start()).unwrap();
            writer.extend(rows).unwrap();
            writer.finish().unwrap();
        };
        write(dir.path(), "load-0", &rows(0..6));
        write(&dir.path().join(LIVE_DIR), "live", &rows(4..9));
        let (mut requests, mut torn) = (Vec::new(), Vec::new());
        let mut corrupt = Vec::new();
        let tables = Tables::open(dir.path(), &mut torn, &mut corrupt).unwrap();
        tables.requests(&mut [&mut parts::each(|row: &RequestRow| requests.push(row.clone()))]).unwrap();
        assert_eq!(requests, rows(0..9));
        assert!(corrupt.is_empty(), "{corrupt:?}");
        assert_eq!(
            torn,
            [
                "from some load sources, only the rows of requests that were not ok were fetched (sources: 1, rows: 3)"
            ]
        );
    }

    /// A lane that collects the sequence numbers and end times of requests.
    struct Ends {
        row: RequestRow,
        taken: Vec<RequestRow>,
    }

    impl Lane<RequestRow> for Ends {
        fn wanted(&self) -> Wanted {
            Wanted::Only(&["seq", "end_ns"])
        }

        fn row(&mut self) -> &mut RequestRow {
            &mut self.row
        }

        fn take(&mut self) {
            self.taken.push(self.row.clone());
        }
    }

    #[test]
    fn unrequested_columns_keep_old_values() {
        let dir = tempfile::tempdir().unwrap();
        let at = Stamp::from_unix_ns;
        let row = |source: &str, seq, ns| {
            let row = RequestRow::not_sent(source.into(), seq, "web".into(), Phase::Main, at(7), at(ns));
            RequestRow { pod: Some("web-1".into()), ..row }
        };
        let rows: Vec<RequestRow> = (0..30).map(|seq| row("load-0", seq, 50)).collect();
        let mut writer = PartWriter::<RequestRow>::create(dir.path(), "load-0", Clock::start()).unwrap();
        writer.extend(&rows).unwrap();
        writer.finish().unwrap();
        let before = RequestRow { scheduled: at(3), pod: None, ..row("nobody", 99, 9) };
        let expected: Vec<RequestRow> =
            (0..30).map(|seq| RequestRow { seq, end: at(50), ..before.clone() }).collect();
        let empty = || Tables {
            requests: Vec::new(),
            streams: Vec::new(),
            gaps: Vec::new(),
            served: Vec::new(),
            loose_requests: Vec::new(),
            loose_streams: Vec::new(),
            loose_served: Vec::new(),
        };
        let in_memory = Tables { loose_requests: rows, ..empty() };
        let path = dir.path().join("requests/load-0-00000.parquet");
        let on_disk = Tables { requests: vec![ClosedPart::open(path).unwrap()], ..empty() };
        for tables in [in_memory, on_disk] {
            let mut ends = Ends { row: before.clone(), taken: Vec::new() };
            tables.requests(&mut [&mut ends]).unwrap();
            assert_eq!(ends.taken, expected);
        }
    }

    #[test]
    fn altered_part_is_reported_and_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let at = Stamp::from_unix_ns(7);
        let write = |source: &str| {
            let row = |seq| RequestRow::not_sent(source.into(), seq, "web".into(), Phase::Main, at, at);
            let mut writer = PartWriter::<RequestRow>::create(dir.path(), source, Clock::start()).unwrap();
            writer.extend(&(0..50).map(row).collect::<Vec<_>>()).unwrap();
            writer.finish().unwrap();
            dir.path().join(format!("requests/{source}-00000.parquet"))
        };
        let (whole, cut) = (write("load-0"), write("load-1"));
        let open = || {
            let (mut torn, mut corrupt, mut rows) = (Vec::new(), Vec::new(), 0);
            let tables = Tables::open(dir.path(), &mut torn, &mut corrupt).unwrap();
            tables.requests(&mut [&mut parts::each(|_: &RequestRow| rows += 1)]).unwrap();
            (rows, corrupt)
        };
        assert_eq!(open(), (100, Vec::new()));
        let bytes = std::fs::read(&whole).unwrap();
        std::fs::write(&cut, &bytes[..bytes.len() - 9]).unwrap();
        let (rows, corrupt) = open();
        assert_eq!(rows, 50);
        assert!(
            corrupt[0].starts_with("requests/load-1-00000.parquet is corrupt: it is not a complete"),
            "{corrupt:?}"
        );
        std::fs::remove_file(&cut).unwrap();
        // Any byte of the pages will do. The metadata follows the pages, and is itself followed by its length and a
        // magic number.
        let (rest, _mark) = bytes.split_last_chunk::<4>().unwrap();
        let (rest, length) = rest.split_last_chunk::<4>().unwrap();
        let pages = rest.len() - usize::try_from(u32::from_le_bytes(*length)).unwrap();
        for place in (4..pages).step_by(37) {
            let mut flipped = bytes.clone();
            flipped[place] ^= 0x10;
            std::fs::write(&whole, flipped).unwrap();
            let (rows, corrupt) = open();
            assert_eq!((rows, corrupt.len()), (0, 1), "byte {place}");
        }
    }
}
