//! Rows in the formats of other tools: CSV with a header line, and the two text encodings of vegeta's results (`vegeta
//! encode -to csv` and `-to json`), for `vegeta report` and `plot`.
//!
//! vegeta's records have no columns for the facts that only rolldrop records. A record's time is the intended send time
//! and its latency is the response time; its code is 0 unless there was a complete response, and its error is the
//! outcome with the name of the error number. Only the counted part is included. Byte counts include heads and bodies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::str::FromStr;

use http::StatusCode;
use serde::Serialize;

use super::error::{LoadError, Result};
use super::load_plan::Plan;
use super::tally;
use rolldrop_record::parts::csv::CsvWriter;
use rolldrop_record::parts::{write_csv, write_csv_header};
use rolldrop_record::{Outcome, Phase, RequestRow};

/// Format of a row file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// All columns of `requests/*.parquet`, with a header line.
    Csv,
    /// vegeta's CSV encoding.
    VegetaCsv,
    /// vegeta's JSON encoding: one object per line.
    VegetaJson,
}

/// A row file and its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Format of the file.
    pub format: RecordFormat,
    /// Path of the file.
    pub path: PathBuf,
}

/// Error for text that does not specify a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not FORMAT=FILE, where FORMAT is csv, vegeta-csv or vegeta-json")]
pub struct NotARecord(String);

impl FromStr for Record {
    type Err = NotARecord;

    fn from_str(text: &str) -> Result<Self, NotARecord> {
        let bad = || NotARecord(text.to_owned());
        let (format, path) = text.split_once('=').filter(|(_, path)| !path.is_empty()).ok_or_else(bad)?;
        let format = match format {
            "csv" => RecordFormat::Csv,
            "vegeta-csv" => RecordFormat::VegetaCsv,
            "vegeta-json" => RecordFormat::VegetaJson,
            _ => return Err(bad()),
        };
        Ok(Self { format, path: path.into() })
    }
}

/// A record being written.
#[derive(Debug)]
pub(super) struct RecordWriter {
    path: PathBuf,
    out: Out,
    /// Method and URL by target name.
    requests: BTreeMap<String, (String, String)>,
}

/// Open file in one of the formats.
#[derive(Debug)]
enum Out {
    Csv(CsvWriter<File>),
    VegetaCsv(CsvWriter<File>),
    VegetaJson(BufWriter<File>),
}

impl RecordWriter {
    /// Creates the file, or replaces an existing one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(super) fn create(record: &Record, plan: &Plan) -> io::Result<Self> {
        let file = File::create(&record.path)?;
        let out = match record.format {
            RecordFormat::Csv => {
                let mut out = CsvWriter::new(file);
                write_csv_header::<RequestRow>(&mut out)?;
                Out::Csv(out)
            }
            RecordFormat::VegetaCsv => Out::VegetaCsv(CsvWriter::new(file)),
            RecordFormat::VegetaJson => Out::VegetaJson(BufWriter::new(file)),
        };
        let requests = plan
            .targets
            .iter()
            .map(|target| (target.name.to_string(), (target.method.to_string(), target.url.clone())));
        let requests = requests.collect();
        Ok(Self { path: record.path.clone(), out, requests })
    }

    /// Writes rows.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be written.
    pub(super) fn write(&mut self, rows: &[RequestRow]) -> Result<()> {
        self.write_rows(rows).map_err(|source| LoadError::Record { path: self.path.clone(), source })
    }

    fn write_rows(&mut self, rows: &[RequestRow]) -> io::Result<()> {
        let requests = &self.requests;
        let mut counted = rows.iter().filter(|row| row.phase == Phase::Main).map(|row| {
            let (method, url) = requests.get(&*row.target).map_or(("", ""), |(method, url)| (method, url));
            VegetaResult::new(row, method, url)
        });
        match &mut self.out {
            Out::Csv(out) => rows.iter().try_for_each(|row| write_csv(row, out)),
            Out::VegetaCsv(out) => counted.try_for_each(|result| result.csv(out)),
            Out::VegetaJson(out) => counted.try_for_each(|result| {
                serde_json::to_writer(&mut *out, &result)?;
                out.write_all(b"\n")
            }),
        }
    }

    /// Flushes the buffered rows.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be written.
    pub(super) fn finish(self) -> Result<()> {
        let flushed = match self.out {
            Out::Csv(out) | Out::VegetaCsv(out) => out.finish().map(drop),
            Out::VegetaJson(mut out) => out.flush(),
        };
        flushed.map_err(|source| LoadError::Record { path: self.path, source })
    }
}

/// A result with the field names and field order of vegeta's encoders.
#[derive(Serialize)]
struct VegetaResult<'a> {
    attack: &'a str,
    seq: u64,
    code: u16,
    timestamp: String,
    latency: i64,
    bytes_out: u64,
    bytes_in: u64,
    error: String,
    /// Always empty: bodies and header fields are not kept.
    body: Option<&'a str>,
    method: &'a str,
    url: &'a str,
    headers: Option<&'a str>,
    #[serde(skip)]
    timestamp_ns: i64,
}

impl<'a> VegetaResult<'a> {
    fn new(row: &'a RequestRow, method: &'a str, url: &'a str) -> Self {
        let code = row.status.filter(|_| tally::is_answered(row)).unwrap_or(0);
        let timestamp_ns = row.scheduled.unix_ns();
        let timestamp = jiff::Timestamp::from_nanosecond(timestamp_ns.into()).unwrap_or_default();
        Self {
            attack: &row.source,
            seq: row.seq,
            code,
            timestamp: timestamp.to_string(),
            latency: row.response_ns(),
            bytes_out: row.bytes_sent,
            bytes_in: row.bytes_received,
            error: error(row),
            body: None,
            method,
            url,
            headers: None,
            timestamp_ns,
        }
    }

    fn csv(&self, out: &mut CsvWriter<impl Write>) -> io::Result<()> {
        let Self {
            timestamp_ns, code, latency, bytes_out, bytes_in, error, attack, seq, method, url, ..
        } = self;
        out.line((timestamp_ns, code, latency, bytes_out, bytes_in, error, "", attack, seq, method, url, ""))
    }
}

/// Returns the error text that vegeta's reports list; empty for successful requests.
fn error(row: &RequestRow) -> String {
    match (row.outcome, row.status, row.errno) {
        (Outcome::Ok, ..) => String::new(),
        (Outcome::HttpError, Some(status), _) => {
            let status = StatusCode::from_u16(status).map(|status| status.to_string());
            status.unwrap_or_else(|_| row.outcome.to_string())
        }
        (outcome, _, Some(errno)) => format!("{outcome} ({})", tally::errno_name(errno)),
        (outcome, ..) => match &row.not_sent_reason {
            Some(reason) => format!("{outcome} ({reason})"),
            None => outcome.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Load, LoadTarget};
    use rolldrop_record::Stamp;

    fn rows() -> Vec<RequestRow> {
        let at = |ns: i64| Stamp::from_unix_ns(1_767_225_600_000_000_000 + ns);
        let row = |seq, target: &str, outcome| RequestRow {
            outcome,
            final_outcome: outcome,
            ..RequestRow::not_sent("load-0".into(), seq, target.into(), Phase::Main, at(0), at(2_500_000))
        };
        vec![
            RequestRow { phase: Phase::Warmup, ..row(0, "web", Outcome::Ok) },
            RequestRow { status: Some(200), bytes_sent: 90, bytes_received: 5, ..row(1, "web", Outcome::Ok) },
            RequestRow { status: Some(404), ..row(2, "a,\"b\"", Outcome::HttpError) },
            RequestRow { errno: Some(104), status: Some(200), ..row(3, "web", Outcome::ResetMidResponse) },
            RequestRow { not_sent_reason: Some("late".into()), ..row(4, "web", Outcome::NotSent) },
        ]
    }

    fn written(format: RecordFormat) -> String {
        let dir = tempfile::tempdir().unwrap();
        let target = |name| LoadTarget { name, ..LoadTarget::new("", "http://web:80/x?y=1,2") };
        let settings = Load {
            targets: ["web", "a,\"b\""].map(|name| target(name.to_owned())).to_vec(),
            ..Load::new("")
        };
        let record = Record { format, path: dir.path().join("rows") };
        let mut writer = RecordWriter::create(&record, &Plan::new(settings).unwrap()).unwrap();
        writer.write(&rows()).unwrap();
        writer.finish().unwrap();
        std::fs::read_to_string(record.path).unwrap()
    }

    #[test]
    fn vegeta_csv_has_twelve_columns() {
        insta::assert_snapshot!(written(RecordFormat::VegetaCsv), @r#"
        1767225600000000000,200,2500000,90,5,,,load-0,1,GET,"http://web/x?y=1,2",
        1767225600000000000,404,2500000,0,0,404 Not Found,,load-0,2,GET,"http://web/x?y=1,2",
        1767225600000000000,0,2500000,0,0,reset_mid_response (ECONNRESET),,load-0,3,GET,"http://web/x?y=1,2",
        1767225600000000000,0,2500000,0,0,not_sent (late),,load-0,4,GET,"http://web/x?y=1,2",
        "#);
    }

    #[test]
    fn vegeta_json_uses_vegeta_names() {
        let json = written(RecordFormat::VegetaJson);
        insta::assert_snapshot!(json.lines().next().unwrap(), @r#"{"attack":"load-0","seq":1,"code":200,"timestamp":"2026-01-01T00:00:00Z","latency":2500000,"bytes_out":90,"bytes_in":5,"error":"","body":null,"method":"GET","url":"http://web/x?y=1,2","headers":null}"#);
    }

    #[test]
    fn csv_writes_every_row_and_column() {
        let text = written(RecordFormat::Csv);
        assert_eq!(text.lines().count(), 6);
        insta::assert_snapshot!(text.lines().nth(3).unwrap(), @r#"load-0,2,"a,""b""",main,1767225600000000000,,,,,,,1767225600002500000,http_error,,,404,,,,false,,,,,0,0,,,1,http_error"#);
    }

    #[test]
    fn record_option_requires_format_and_path() {
        let record: Record = "vegeta-csv=a=b.csv".parse().unwrap();
        assert_eq!(record, Record { format: RecordFormat::VegetaCsv, path: "a=b.csv".into() });
        for wrong in ["rows.csv", "xml=rows", "csv="] {
            assert!(wrong.parse::<Record>().is_err(), "{wrong}");
        }
    }
}
