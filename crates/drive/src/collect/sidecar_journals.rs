//! Reads sidecars' journals outside a run, but only those of pods that are being deleted. The workloads of these pods
//! must be named, because their sidecars get the token.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::Collector;
use super::endpoint::{Context, Endpoint, WantedRows};
use super::proxy_listener::{ProxyListener, ProxyNews};
use crate::error::Result;
use crate::observe::{LogPods, LogSource, follow_ending_pods};
use crate::tasks::BackgroundTasks;
use rolldrop_record::event::PodEvent;
use rolldrop_record::run_info::Rows;
use rolldrop_record::wire::AdminToken;
use rolldrop_record::{Clock, ClockOffset, Offsets, ServedRow, Stamp};
use rolldrop_sidecar::inject::SIDECAR_NAME;

/// Number of rows to read from before the deletion. A larger number could delay the rows from the termination until the
/// pod is gone.
const EARLIER_ROWS: u64 = 20_000;
/// Number of clock exchanges to keep for one sidecar: those from the last five minutes.
const SAMPLES: usize = 150;

/// Pods whose sidecars are trusted with the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarSource {
    namespace: String,
    pods: LogPods,
}

impl SidecarSource {
    /// Returns the namespace of the pods.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl fmt::Display for SidecarSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.pods)
    }
}

impl FromStr for SidecarSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(LogSource::Pods { namespace, pods, container: None }) => Ok(Self { namespace, pods }),
            _ => Err(format!(
                "{text:?} names no workload: use NAMESPACE/KIND/NAME, where KIND is deployment, statefulset, daemonset or \
                 pod"
            )),
        }
    }
}

/// Stream of sidecars' journals, as they are read. Dropping it stops the reading.
#[derive(Debug)]
pub struct SidecarJournals {
    _tasks: BackgroundTasks,
    deliveries: UnboundedReceiver<JournalDelivery>,
}

/// Part of a journal, or a fact about it.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalDelivery {
    /// Index of the source in the list that was given.
    pub number: usize,
    /// UID of the pod.
    pub uid: String,
    /// `NAMESPACE/POD/rolldrop`. If a sidecar restarts, it has another journal, with a number after the pod's name.
    pub log: Arc<str>,
    /// The part or fact.
    pub kind: JournalDeliveryKind,
}

/// Kind of a [`JournalDelivery`], with its content.
#[derive(Clone, Debug, PartialEq)]
pub enum JournalDeliveryKind {
    /// Offset of the sidecar's clock, as measured so far.
    Clock(ClockOffset),
    /// Rows, on the sidecar's clock.
    Rows(Vec<ServedRow>),
    /// A period in which rows may be missing.
    Gap {
        /// Last sign of life before the gap, or the first contact.
        from: Stamp,
        /// End of the gap.
        to: Stamp,
        /// Reason.
        why: String,
    },
    /// The sidecar has ended. No journal contains later requests.
    Ended {
        /// Time of its last sign of life.
        at: Stamp,
    },
    /// A lasting problem.
    Warning(String),
}

impl SidecarJournals {
    /// Starts to read these pods' journals, each as soon as its pod is being deleted. Needs a tokio runtime.
    ///
    /// # Errors
    /// Fails if a workload or its pods cannot be found.
    pub async fn begin(
        client: &Client,
        sources: &[SidecarSource],
        admin_token: Option<AdminToken>,
        clock: Clock,
    ) -> Result<Self> {
        let (sender, deliveries) = mpsc::unbounded_channel();
        let mut tasks = BackgroundTasks::default();
        for (number, SidecarSource { namespace, pods }) in sources.iter().enumerate() {
            let journals = Mutex::default();
            let listener = Arc::new(JournalListener { number, clock, sender: sender.clone(), journals });
            let telling = Arc::clone(&listener);
            let tell_bare = move |pod: &PodEvent| {
                let what = format!(
                    "pod {}/{} has no sidecar: add it with `rolldrop inject`",
                    pod.namespace, pod.name
                );
                telling.deliver(
                    pod.uid.clone(),
                    log(&pod.namespace, &pod.name),
                    JournalDeliveryKind::Warning(what),
                );
            };
            let views = follow_ending_pods(client, namespace, pods, clock, &mut tasks, tell_bare).await?;
            let (client, admin_token) = (client.clone(), admin_token.clone());
            let context = Context { client, listener, admin_token, wanted: WantedRows::Latest(EARLIER_ROWS) };
            Collector::follow(context, views.subscribe(), &mut tasks);
        }
        Ok(Self { _tasks: tasks, deliveries })
    }

    /// Returns the next part or fact; `None` if there are no sources. Safe to cancel.
    pub async fn next(&mut self) -> Option<JournalDelivery> {
        self.deliveries.recv().await
    }
}

/// Delivers what is read from one source's sidecars.
struct JournalListener {
    number: usize,
    clock: Clock,
    // The receiver takes each delivery immediately, and a pod has a limited number of rows from before its deletion.
    sender: UnboundedSender<JournalDelivery>,
    /// Journals by pod UID and recorder name.
    journals: Mutex<BTreeMap<(String, String), ReadJournal>>,
}

/// Facts about a journal.
struct ReadJournal {
    /// Time of the first attempt to read it.
    begun: Stamp,
    /// Time of the last rows, or of the first attempt.
    read: Stamp,
    /// Time of the last sign of life, or of the first attempt.
    heard: Stamp,
    samples: Vec<(Stamp, ClockOffset)>,
    /// Reason that it could not be read: a lasting one, or else the first one.
    failure: Option<String>,
}

impl ReadJournal {
    fn begin(now: Stamp) -> Self {
        Self { begun: now, read: now, heard: now, samples: Vec::new(), failure: None }
    }

    /// Returns the last deliveries for a journal that has ended at `now`.
    fn ended(&mut self, now: Stamp, rows: Rows) -> Vec<JournalDeliveryKind> {
        let (from, why) = match rows.recorded {
            Some(recorded) if recorded > rows.received => {
                (self.begun, Some(format!("{} of its requests have no row", recorded - rows.received)))
            }
            Some(_) => (now, None),
            None => {
                let cut_off = || "the sidecar ended before it had handed over its last rows".to_owned();
                let failure = self.failure.take().filter(|_| self.samples.is_empty());
                (self.read, Some(failure.unwrap_or_else(cut_off)))
            }
        };
        let at = if rows.recorded.is_some() { now } else { self.heard };
        let gap = why.map(|why| JournalDeliveryKind::Gap { from, to: now, why });
        gap.into_iter().chain([JournalDeliveryKind::Ended { at }]).collect()
    }
}

impl JournalListener {
    fn deliver(&self, uid: String, log: Arc<str>, kind: JournalDeliveryKind) {
        // If the journals are being dropped, the receiver is gone.
        let _ = self.sender.send(JournalDelivery { number: self.number, uid, log, kind });
    }
}

impl ProxyListener for JournalListener {
    fn clock(&self) -> Clock {
        self.clock
    }

    fn take(&self, of: &Endpoint, source: &str, news: ProxyNews) {
        let now = self.clock.now();
        let mut journals = self.journals.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (of.uid.clone(), source.to_owned());
        let journal = journals.entry(key.clone()).or_insert_with(|| ReadJournal::begin(now));
        if let ProxyNews::Rows(_) | ProxyNews::Event(_) | ProxyNews::Clock(..) = news {
            journal.heard = now;
        }
        let kinds = match news {
            ProxyNews::Rows(rows) => {
                journal.read = now;
                vec![JournalDeliveryKind::Rows(rows)]
            }
            ProxyNews::Event(_) => Vec::new(),
            ProxyNews::Clock(sent, sample) => {
                if journal.samples.len() >= SAMPLES {
                    journal.samples.remove(0);
                }
                journal.samples.push((sent, sample));
                let offsets = Offsets::of(journal.samples.iter().copied());
                offsets.map(|offsets| JournalDeliveryKind::Clock(offsets.overall())).into_iter().collect()
            }
            ProxyNews::RowsMissing => {
                let why = "the sidecar no longer had all rows".to_owned();
                vec![JournalDeliveryKind::Gap { from: journal.read, to: now, why }]
            }
            ProxyNews::Warning(what) => {
                journal.failure = Some(format!("it {what}"));
                let pod = format!("{}/{}", of.namespace, of.pod);
                vec![JournalDeliveryKind::Warning(format!("the sidecar of pod {pod} {what}"))]
            }
            ProxyNews::Failed(why) => {
                // The last reason is often that the sidecar has exited.
                journal.failure.get_or_insert(why);
                Vec::new()
            }
            ProxyNews::Ended(rows) => journal.ended(now, rows),
            ProxyNews::Forgotten => {
                journals.remove(&key);
                Vec::new()
            }
        };
        let log = log(&of.namespace, source);
        kinds.into_iter().for_each(|kind| self.deliver(of.uid.clone(), Arc::clone(&log), kind));
    }
}

/// Returns the name of a recorder's journal.
fn log(namespace: &str, source: &str) -> Arc<str> {
    format!("{namespace}/{source}/{SIDECAR_NAME}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecar_source_names_workload() {
        let source: SidecarSource = "shop/Deployment/web".parse().unwrap();
        assert_eq!((source.to_string().as_str(), source.namespace()), ("shop/deployment/web", "shop"));
        for wrong in ["", "web", "deployment/web", "shop/service/web", "shop/pod/web:rolldrop", "./file"] {
            let said = wrong.parse::<SidecarSource>().unwrap_err();
            assert!(said.contains("names no workload: use NAMESPACE/KIND/NAME"), "{said}");
        }
    }
}
