//! The percentile table of HdrHistogram's tools (`.hgrm`), in milliseconds.

use std::fmt::Write;

use hdrhistogram::Histogram;

/// Number of rows for each halving of the remaining distance to 100 %, as in the HdrHistogram tools.
const ROWS_PER_HALVING: u32 = 5;
const NS_PER_MS: f64 = 1e6;

/// Returns the percentile table for a histogram in nanoseconds.
pub fn table(ns: &Histogram<u64>) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_table(&mut out, ns);
    out
}

fn write_table(out: &mut String, ns: &Histogram<u64>) -> std::fmt::Result {
    writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
    let mut total = 0;
    for row in ns.iter_quantiles(ROWS_PER_HALVING) {
        total += row.count_since_last_iteration();
        let (value, quantile) = (row.value_iterated_to() as f64 / NS_PER_MS, row.quantile_iterated_to());
        write!(out, "{value:>12.3} {quantile:>2.12} {total:>10}")?;
        // In the last row, at 100 %, the quotient would be infinite.
        match quantile < 1.0 {
            true => writeln!(out, " {:>14.2}", 1.0 / (1.0 - quantile))?,
            false => writeln!(out)?,
        }
    }
    let mean = ns.mean() / NS_PER_MS;
    let (deviation, max) = (ns.stdev() / NS_PER_MS, ns.max() as f64 / NS_PER_MS);
    writeln!(out, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]")?;
    writeln!(out, "#[Max     = {max:>12.3}, Total count    = {:>12}]", ns.len())?;
    let buckets = ns.buckets();
    writeln!(out, "#[Buckets = {buckets:>12}, SubBuckets     = {:>12}]", 2048)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hgrm_table_matches_histogram() {
        let mut ns = Histogram::new(3).unwrap();
        (1..=1000).for_each(|ms| ns.record(ms * 1_000_000).unwrap());
        let table = table(&ns);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .skip(2)
            .filter(|l| !l.starts_with('#'))
            .map(|l| l.split_whitespace().collect())
            .collect();
        let (last, others) = rows.split_last().unwrap();
        assert!(others.iter().all(|row| row.len() == 4), "{table}");
        assert_eq!(&last[1..], ["1.000000000000", "1000"], "{table}");
        let median = others.iter().find(|row| row[1] == "0.500000000000").unwrap();
        assert_eq!((median[2], median[3]), ("500", "2.00"), "{table}");
        assert!((median[0].parse::<f64>().unwrap() - 500.0).abs() < 0.5, "{table}");
        assert!(table.contains("Total count    =         1000]"), "{table}");
    }
}
