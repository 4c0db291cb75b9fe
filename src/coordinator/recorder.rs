//! The one thread that writes what the coordinator's process hears of.

use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{CoordinatorError, SOURCE};
use crate::record::parts::PartWriter;
use crate::record::{Clock, Event, EventKind, RunDir, RunDirError, ServedRow, Stamp};

/// How often parts are looked at for their age when nothing arrives.
const TICK: Duration = Duration::from_millis(500);

enum Message {
    Event(Box<Event>),
    Served { source: String, rows: Vec<ServedRow> },
    Finish,
}

/// Owns the recorder thread.
#[derive(Debug)]
pub struct Recorder {
    handle: RecorderHandle,
    thread: Option<JoinHandle<()>>,
    result: oneshot::Receiver<Result<(), RunDirError>>,
}

/// Sends to the recorder thread; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct RecorderHandle(mpsc::Sender<Message>);

impl Recorder {
    pub(super) fn start(run_dir: &RunDir, clock: Clock) -> Result<Self, RunDirError> {
        let mut log = run_dir.event_log()?;
        let run_dir = run_dir.clone();
        let (sender, receiver) = mpsc::channel();
        let (done, result) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("recorder".into())
            .spawn(move || {
                let mut write = || -> Result<(), RunDirError> {
                    let mut tables: HashMap<String, PartWriter<ServedRow>> = HashMap::new();
                    loop {
                        match receiver.recv_timeout(TICK) {
                            Ok(Message::Event(event)) => log.append(&event)?,
                            Ok(Message::Served { source, rows }) => {
                                if !tables.contains_key(&source) {
                                    tables.insert(source.clone(), run_dir.part_writer(&source, clock)?);
                                }
                                if let Some(table) = tables.get_mut(&source) {
                                    table.extend(&rows)?;
                                }
                            }
                            Err(RecvTimeoutError::Timeout) => {
                                for table in tables.values_mut() {
                                    table.tick()?;
                                }
                            }
                            Ok(Message::Finish) | Err(RecvTimeoutError::Disconnected) => break,
                        }
                    }
                    for table in tables.into_values() {
                        table.finish()?;
                    }
                    Ok(())
                };
                // Nobody listens after an early end of the run: then the result is of no use.
                let _ = done.send(write());
            })
            .map_err(|source| RunDirError::Io { path: "recorder thread".into(), source })?;
        Ok(Self { handle: RecorderHandle(sender), thread: Some(thread), result })
    }

    pub(super) fn handle(&self) -> RecorderHandle {
        self.handle.clone()
    }

    /// Writes what was sent so far, closes the files, and ends the thread.
    pub(super) async fn finish(mut self) -> Result<(), CoordinatorError> {
        self.handle.send(Message::Finish);
        let result = self.result.await.map_err(|_| CoordinatorError::RecorderGone)?;
        if let Some(thread) = self.thread.take() {
            // It has sent its result, so it is at its end.
            let _ = thread.join();
        }
        Ok(result?)
    }
}

impl RecorderHandle {
    pub(super) fn event(&self, at: Stamp, kind: EventKind) {
        self.event_of(SOURCE, at, kind);
    }

    pub(super) fn event_of(&self, source: &str, at: Stamp, kind: EventKind) {
        self.send(Message::Event(Box::new(Event::new(at, source, kind))));
    }

    pub(super) fn served(&self, source: &str, rows: Vec<ServedRow>) {
        self.send(Message::Served { source: source.to_owned(), rows });
    }

    fn send(&self, message: Message) {
        // The thread ends early only on a write error, which `finish` reports.
        let _ = self.0.send(message);
    }
}
