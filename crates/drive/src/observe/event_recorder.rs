//! The one thread that writes the coordinator process's records. The run's viewer sees each event first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::list_watch::WatchListener;
use super::served_table::ServedTable;
use crate::error::{CoordinatorError, Result};
use crate::viewer::Viewer;
use rolldrop_record::run_dir::EventLog;
use rolldrop_record::run_info::EventsWritten;
use rolldrop_record::{Clock, Event, EventKind, RunDir, RunDirError, ServedRow, Stamp};

/// Name of the coordinator as a source.
pub(crate) const SOURCE: &str = "coordinator";
/// Maximum number of messages waiting to be written. A full channel blocks the senders. Nothing is lost, because
/// proxies keep their rows until they are read, and watches wait on the API server's side.
const WAITING: usize = 256;
/// Time between two checks of the parts' age.
const TICK: Duration = Duration::from_millis(500);

enum Message {
    Event(Box<Event>),
    Served { source: String, rows: Vec<ServedRow> },
    Finish,
}

/// Owns the recorder thread.
#[derive(Debug)]
pub(crate) struct EventRecorder {
    handle: RecorderHandle,
    thread: JoinHandle<()>,
    result: oneshot::Receiver<Result<EventsWritten, RunDirError>>,
}

/// Handle for sending to the recorder thread; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RecorderHandle {
    messages: mpsc::SyncSender<Message>,
    viewer: Arc<dyn Viewer>,
    clock: Clock,
}

impl EventRecorder {
    pub(crate) fn start(
        run_dir: &RunDir,
        clock: Clock,
        viewer: Arc<dyn Viewer>,
    ) -> Result<Self, RunDirError> {
        let log = run_dir.event_log()?;
        let run_dir = run_dir.clone();
        let (messages, receiver) = mpsc::sync_channel(WAITING);
        let (done, result) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("recorder".into())
            .spawn(move || {
                let files = RecordFiles { log, tables: HashMap::new(), run_dir, clock };
                // If the run ended early, nothing is listening, and the result is not needed.
                let _ = done.send(files.write(&receiver));
            })
            .map_err(|source| RunDirError::Io { path: "recorder thread".into(), source })?;
        Ok(Self { handle: RecorderHandle { messages, viewer, clock }, thread, result })
    }

    pub(super) fn handle(&self) -> &RecorderHandle {
        &self.handle
    }

    /// Writes everything sent so far, closes the files, and stops the thread. Returns the counts of written events.
    pub(crate) async fn finish(self) -> Result<EventsWritten> {
        self.handle.send(Message::Finish);
        let result = self.result.await.map_err(|_| CoordinatorError::RecorderGone)?;
        // The thread has sent its result, so it is about to finish.
        let _ = self.thread.join();
        Ok(result?)
    }
}

/// Files that the thread writes.
struct RecordFiles {
    log: EventLog,
    tables: HashMap<String, ServedTable>,
    run_dir: RunDir,
    clock: Clock,
}

impl RecordFiles {
    /// Writes messages until no more arrive, and returns the first error. Also closes old parts while other sources are
    /// busy. If the event log fails, the tables continue, and the other way round.
    fn write(mut self, messages: &Receiver<Message>) -> Result<EventsWritten, RunDirError> {
        let (mut events, mut served) = (Ok(()), Ok(()));
        let mut next_look = Instant::now() + TICK;
        loop {
            match messages.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                Ok(Message::Event(event)) => events = events.and_then(|()| self.log.append(&event)),
                Ok(Message::Served { source, rows }) => {
                    served = served.and_then(|()| Ok(self.table(source)?.extend(rows)?));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Finish) | Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + TICK;
                served =
                    served.and_then(|()| Ok(self.tables.values_mut().try_for_each(ServedTable::tick)?));
            }
        }
        for table in self.tables.into_values() {
            served = served.and(table.finish().map_err(RunDirError::from));
        }
        events.and(served)?;
        Ok(self.log.close())
    }

    fn table(&mut self, source: String) -> Result<&mut ServedTable, RunDirError> {
        Ok(match self.tables.entry(source) {
            Entry::Occupied(table) => table.into_mut(),
            Entry::Vacant(place) => {
                let table = ServedTable::create(&self.run_dir, place.key(), self.clock)?;
                place.insert(table)
            }
        })
    }
}

impl RecorderHandle {
    /// Returns the clock of this process.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Records an event that happened now.
    pub(crate) fn record(&self, kind: EventKind) {
        self.event(self.clock.now(), kind);
    }

    /// Records a warning.
    pub(crate) fn warn(&self, message: String) {
        self.record(EventKind::Warning { message });
    }

    /// Records an event from the coordinator's process, timestamped by that process's clock.
    pub(crate) fn event(&self, at: Stamp, kind: EventKind) {
        self.event_of(SOURCE, at, kind);
    }

    /// Records an event from another source, timestamped by that source's clock.
    pub(crate) fn event_of(&self, source: &str, at: Stamp, kind: EventKind) {
        let event = Event::new(at, source, kind);
        self.viewer.recorded(&event);
        self.send(Message::Event(Box::new(event)));
    }

    pub(crate) fn served(&self, source: &str, rows: Vec<ServedRow>) {
        self.send(Message::Served { source: source.to_owned(), rows });
    }

    fn send(&self, message: Message) {
        // The thread stops early only if it panics, which `finish` reports.
        let Err(TrySendError::Full(message)) = self.messages.try_send(message) else { return };
        let wait = || {
            let _ = self.messages.send(message);
        };
        // Another runtime thread takes over this thread's other tasks, such as handling signals.
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
            Ok(_) | Err(_) => wait(),
        }
    }
}

impl WatchListener for RecorderHandle {
    fn clock(&self) -> Clock {
        self.clock
    }

    fn take(&self, at: Stamp, _: Option<String>, kind: EventKind) {
        self.event(at, kind);
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::session::tests::served;
    use crate::viewer::Nobody;

    #[test]
    fn busy_recorder_flushes_finished_source() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::create(&dir.path().join("run")).unwrap();
        let clock = Clock::start();
        let recorder = EventRecorder::start(&run_dir, clock, Arc::new(Nobody)).unwrap();
        let handle = recorder.handle().clone();
        handle.served("web-1", vec![served(0)]);
        let deadline = Instant::now() + Duration::from_secs(60);
        let on_disk = || rolldrop_record::parts::read_table::<ServedRow>(run_dir.path()).unwrap().len();
        // There is always another message to write.
        while on_disk() == 0 {
            assert!(Instant::now() < deadline, "the finished source's row is not on disk");
            handle.event(clock.now(), EventKind::Warning { message: "busy".into() });
            std::thread::sleep(TICK / 50);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(recorder.finish()).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn full_disk_of_events_spares_tables() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::create(&dir.path().join("run")).unwrap();
        std::os::unix::fs::symlink("/dev/full", run_dir.path().join("events.jsonl")).unwrap();
        let clock = Clock::start();
        let recorder = EventRecorder::start(&run_dir, clock, Arc::new(Nobody)).unwrap();
        let handle = recorder.handle().clone();
        handle.served("web-1", vec![served(0)]);
        handle.event(clock.now(), EventKind::Warning { message: "no space".into() });
        handle.served("web-1", vec![served(1)]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let error = runtime.block_on(recorder.finish()).unwrap_err();
        assert!(error.to_string().contains("events.jsonl"), "{error}");
        let rows = rolldrop_record::parts::read_table::<ServedRow>(run_dir.path()).unwrap();
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn full_queue_blocks_senders_without_loss() {
        const EVENTS: usize = 4 * WAITING;
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::create(&dir.path().join("run")).unwrap();
        // A pipe replaces the file, so writing blocks while nothing reads it.
        let log = run_dir.path().join("events.jsonl");
        nix::unistd::mkfifo(&log, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut reader = std::fs::OpenOptions::new().read(true).write(true).open(&log).unwrap();
        let clock = Clock::start();
        let recorder = EventRecorder::start(&run_dir, clock, Arc::new(Nobody)).unwrap();
        let (handle, sent) = (recorder.handle().clone(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&sent);
        let sender = std::thread::spawn(move || {
            for _ in 0..EVENTS {
                // Exceeds the capacity of a pipe.
                let message = "x".repeat(100_000);
                handle.event(clock.now(), EventKind::Warning { message });
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        while sent.load(Ordering::SeqCst) < WAITING && Instant::now() < deadline {
            std::thread::yield_now();
        }
        // One message is being written, and the next one may already have left the channel.
        assert!((WAITING..=WAITING + 2).contains(&sent.load(Ordering::SeqCst)) && !sender.is_finished());
        let (mut lines, mut part) = (0, vec![0; 1 << 20]);
        while lines < EVENTS {
            let read = reader.read(&mut part).unwrap();
            lines += part[..read].iter().filter(|byte| **byte == b'\n').count();
        }
        sender.join().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(recorder.finish()).unwrap();
        assert_eq!((sent.load(Ordering::SeqCst), lines), (EVENTS, EVENTS));
    }
}
