//! Samples the load on the measuring process and its machine once per second, from /proc.
//!
//! Each measuring process takes its own samples, because only its own threads show how long they waited for a
//! processor. The analysis judges whether this was too long.

pub mod kube_proxy;

use std::fs;
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use rolldrop_record::event::MachineSample;
use rolldrop_record::{Clock, Stamp};

const INTERVAL: Duration = Duration::from_secs(1);

/// Sampler of this process and its machine.
#[derive(Debug)]
pub struct MachineSampler {
    clock: Clock,
    ticks: Interval,
    last: Option<MachineCounters>,
}

impl MachineSampler {
    /// Starts sampling.
    pub fn begin(clock: Clock) -> Self {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { clock, ticks, last: MachineCounters::take(&clock) }
    }

    /// Waits for the next sample, and returns it with the end of its interval. Waits forever if there is no /proc. This
    /// method is cancel safe.
    pub async fn next(&mut self) -> (Stamp, MachineSample) {
        loop {
            self.ticks.tick().await;
            let now = MachineCounters::take(&self.clock);
            let sample = match (&self.last, &now) {
                (Some(last), Some(now)) => now.since(last).map(|sample| (now.at, sample)),
                _ => None,
            };
            self.last = now;
            if let Some(sample) = sample {
                return sample;
            }
        }
    }
}

/// Counters since boot, and since the start of this process.
#[derive(Debug)]
struct MachineCounters {
    at: Stamp,
    total_ticks: u64,
    idle_ticks: u64,
    steal_ticks: u64,
    waited_ns: u64,
}

impl MachineCounters {
    /// Reads the counters; `None` if there is no /proc.
    fn take(clock: &Clock) -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let (total_ticks, idle_ticks, steal_ticks) = cpu_ticks(&stat)?;
        let tasks = fs::read_dir("/proc/self/task").ok()?;
        let waited = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        let waited_ns = tasks.flatten().filter_map(waited).sum();
        Some(Self { at: clock.now(), total_ticks, idle_ticks, steal_ticks, waited_ns })
    }

    /// Computes the sample between two readings; `None` if they are too close together.
    fn since(&self, earlier: &MachineCounters) -> Option<MachineSample> {
        let interval_s = self.at.seconds_since(earlier.at);
        let ticks = self.total_ticks.checked_sub(earlier.total_ticks).filter(|&t| t > 0)? as f64;
        // The waiting time of threads that have exited is no longer included.
        let waited_ns = self.waited_ns.saturating_sub(earlier.waited_ns) as f64;
        Some(MachineSample {
            interval_s,
            steal: self.steal_ticks.saturating_sub(earlier.steal_ticks) as f64 / ticks,
            busy: 1.0 - self.idle_ticks.saturating_sub(earlier.idle_ticks) as f64 / ticks,
            run_queue_delay: waited_ns / 1e9 / interval_s,
        })
    }
}

/// Returns the total, idle (including iowait) and stolen ticks from the first line of /proc/stat.
fn cpu_ticks(stat: &str) -> Option<(u64, u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
    // Fields: user nice system idle iowait irq softirq steal; guest time is included in user.
    let total = ticks.iter().take(8).sum();
    Some((total, ticks.get(3)? + ticks.get(4)?, *ticks.get(7)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_sample_divides_by_total_ticks() {
        let reading = |stat: &str, second: i64| {
            let (total_ticks, idle_ticks, steal_ticks) = cpu_ticks(stat).unwrap();
            let at = Stamp::from_unix_ns(second * 1_000_000_000);
            MachineCounters { at, total_ticks, idle_ticks, steal_ticks, waited_ns: 0 }
        };
        let before = reading("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1\n", 0);
        let after = reading("cpu  130 0 110 720 120 0 0 20 50 0\n", 1);
        let sample = after.since(&before).unwrap();
        assert_eq!((sample.steal, sample.busy), (0.2, 0.6));
        assert!(before.since(&before).is_none());
    }
}
