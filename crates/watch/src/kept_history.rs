//! The history that `rolldrop watch --out` keeps: what this watch adds to what earlier ones have recorded.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use crate::error::{Result, WatchError};
use crate::viewer::WatchViewer;
use rolldrop_record::termination_store::{StoreError, StoreLimits, TerminationStore};
use rolldrop_record::{Stamp, shown};
use rolldrop_report::{EarlierRecord, WatchOutput, WatchedSpan, rfc3339_seconds};

/// Maximum interval at which the watched time is recorded. After a kill, the last interval counts as not watched.
const WATCHED_EVERY: Duration = Duration::from_secs(10);

/// A history to which this watch writes.
pub(crate) struct KeptHistory {
    store: TerminationStore,
    /// UIDs of existing pods whose terminations earlier watches have recorded. A pod that its kubelet evicted may exist
    /// for days.
    earlier: HashSet<String>,
    cluster: String,
    namespace: Option<String>,
    /// Time up to which the watched time is recorded.
    watched_until: Stamp,
    /// True if anything was recorded since.
    has_news: bool,
}

impl KeptHistory {
    /// Opens the history in a directory, for a watch of one or all namespaces that has just begun and has listed pods
    /// with these UIDs.
    pub(crate) fn open(
        dir: &Path,
        cluster: &str,
        namespace: Option<String>,
        now: Stamp,
        listed: &HashSet<&str>,
        viewer: &dyn WatchViewer,
    ) -> Result<Self> {
        // Records contain text in this form.
        let cluster = shown::one_line(cluster).into_owned();
        let mut earlier = HashSet::new();
        let mut last = None;
        let mut take = |_: Stamp, line: &[u8]| {
            let record = EarlierRecord::read(line)?;
            // No other pod can be seen again.
            earlier.extend(record.uid.filter(|uid| listed.contains(&**uid)));
            last = record.cluster.zip(record.to_ns).or(last.take());
            Ok(())
        };
        let opened = TerminationStore::open(dir, StoreLimits::default(), &mut take);
        let failed = |source| WatchError::History { dir: dir.to_owned(), source };
        let (store, lost) = opened.map_err(failed)?;
        lost.iter().for_each(|lost| viewer.say(lost));
        if let Some((other, until)) = last {
            if other != cluster {
                return Err(WatchError::OtherCluster { dir: dir.to_owned(), other, cluster });
            }
            let (from, to) = (rfc3339_seconds(until), rfc3339_seconds(now));
            viewer.say(&format!(
                "the history in {} continues; no watch is known to have run from {from} to {to}",
                dir.display()
            ));
        }
        Ok(Self { store, earlier, cluster, namespace, watched_until: now, has_news: false })
    }

    /// Returns true if an earlier watch has recorded this pod's termination.
    pub(crate) fn has(&self, uid: &str) -> bool {
        self.earlier.contains(uid)
    }

    /// Records a termination or a gap.
    pub(crate) fn add(&mut self, now: Stamp, record: &WatchOutput) -> Result<()> {
        self.store.append(now, &*shown::values(record)).map_err(|error| self.lost(error))?;
        self.has_news = true;
        Ok(())
    }

    /// Records that all terminations up to a time are recorded, and deletes old records.
    pub(crate) fn watched_until(&mut self, now: Stamp, until: Stamp) -> Result<()> {
        if until <= self.watched_until {
            return Ok(());
        }
        let span = WatchedSpan {
            from_ns: self.watched_until,
            to_ns: until,
            namespace: self.namespace.clone(),
            cluster: self.cluster.clone(),
        };
        self.add(now, &WatchOutput::Watched(span))?;
        (self.watched_until, self.has_news) = (until, false);
        self.store.rotate(now).map_err(|error| self.lost(error))
    }

    /// Returns true if the watched time should be recorded.
    pub(crate) fn is_due(&self, until: Stamp) -> bool {
        self.has_news || until > self.watched_until + WATCHED_EVERY
    }

    fn lost(&self, source: StoreError) -> WatchError {
        WatchError::HistoryLost { since: rfc3339_seconds(self.watched_until), source }
    }
}
