//! Sends a small load to a URL, and prints the outcomes of its requests:
//!
//! ```sh
//! cargo run --release -p rolldrop-load --example send -- http://127.0.0.1:8080/
//! ```

use std::error::Error;
use std::time::Duration;

use rolldrop_load::{Load, Pace, Plan, Prepared};
use rolldrop_record::Clock;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("no URL given")?;
    let pace = Pace::constant(200.0, Duration::from_secs(5));
    let plan = Plan::new(Load { pace, ..Load::new(url) })?;
    // With a run directory instead of `None`, each request would get a row there.
    let mut running = Prepared::new(plan).await?.start(Clock::start(), None)?;
    let summary = running.join().await?;
    for (outcome, count) in summary.tally.outcomes.iter() {
        println!("{count:>6} {outcome}");
    }
    let p99 = Duration::from_nanos(summary.tally.response_ns.value_at_quantile(0.99));
    println!("response time: {p99:?} (p99)");
    Ok(())
}
