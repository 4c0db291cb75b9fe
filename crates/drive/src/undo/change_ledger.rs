//! The changes of one run, from before they are made until they are undone.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::api::DynamicObject;
use tokio::time::Instant;

use super::change_journal::{ClusterChange, Journal, ObjectRef};
use super::{UndoOutcome, Undone, all, one};
use crate::api::{Caller, may_have_been_done};
use crate::error::{CoordinatorError, JournalError, Result};

/// Changes of a run: those in its journal, and those that are undone already.
#[derive(Debug)]
pub(crate) struct ChangeLedger {
    run: String,
    journal: Mutex<Journal>,
    /// Changes that were already undone before the end of the run.
    taken_back: Mutex<Vec<Undone>>,
}

impl ChangeLedger {
    /// Begins with a run's journal.
    pub(crate) fn of(journal: Journal) -> Self {
        let (run, journal, taken_back) = (journal.run().to_owned(), Mutex::new(journal), Mutex::default());
        Self { run, journal, taken_back }
    }

    /// Returns the name that labels the run's objects.
    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    pub(crate) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a change, and then makes it. Returns its ID in the journal.
    ///
    /// # Errors
    /// [`CoordinatorError::Conflict`] if the object has changed in the meantime.
    pub(crate) async fn make<F: Future<Output = kube::Result<DynamicObject>>>(
        &self,
        caller: &Caller,
        object: ObjectRef,
        change: ClusterChange,
        call: impl FnMut() -> F,
    ) -> Result<u32> {
        let what = format!("change {object}");
        let id = self.journal().announce(object.clone(), change)?;
        let asked = caller.insist(&what, call).await?;
        let Err(error) = asked.answer else { return Ok(id) };
        // If the change may still have taken effect, the undo will find out.
        if !asked.is_doubtful && !may_have_been_done(&error) {
            self.journal().undone(id, "refused")?;
        }
        Err(refusal(&error, &what, &object))
    }

    /// Undoes one change before the end of the run.
    pub(crate) async fn take_back(&self, caller: &Caller, id: u32) -> Result<()> {
        let open = self.journal().open_changes().into_iter().find(|open| open.id == id);
        let Some(open) = open else { return Ok(()) };
        let deadline = Instant::now() + caller.limits.undo;
        let mut undone = one(caller, &self.run, open, deadline).await;
        if let UndoOutcome::Failed { why, may_pass } = undone.outcome {
            return Err(CoordinatorError::Api { what: "undo the change".into(), why, may_pass });
        }
        undone.record(&mut self.journal(), id);
        self.taken_back.lock().unwrap_or_else(PoisonError::into_inner).push(undone);
        Ok(())
    }

    /// Keeps a change beyond the end of the run.
    pub(crate) fn keep(&self, id: u32) -> Result<(), JournalError> {
        self.journal().undone(id, "kept, as the scenario says")
    }

    /// Undoes all remaining changes. Also returns the changes that were undone before.
    pub(crate) async fn undo(self, caller: &Caller) -> Vec<Undone> {
        let mut journal = self.journal.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut undone = all(caller, std::slice::from_mut(&mut journal)).await;
        undone.extend(self.taken_back.into_inner().unwrap_or_else(PoisonError::into_inner));
        undone
    }
}

/// Returns the error for a change that the API server refused, possibly because the object had changed in the meantime.
pub(crate) fn refusal(error: &kube::Error, what: &str, object: &ObjectRef) -> CoordinatorError {
    match error {
        kube::Error::Api(status) if status.code == 409 => CoordinatorError::Conflict(object.to_string()),
        error => CoordinatorError::api(what, error),
    }
}
