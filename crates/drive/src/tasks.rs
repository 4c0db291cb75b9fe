//! Background tasks of a run, which end with it.

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Tasks that run until they are stopped together.
#[derive(Debug, Default)]
pub(crate) struct BackgroundTasks {
    running: JoinSet<()>,
    stop: CancellationToken,
}

impl BackgroundTasks {
    /// Starts a task that may end at any await when it is stopped.
    pub(crate) fn spawn<T: Send>(&mut self, task: impl Future<Output = T> + Send + 'static) {
        let stop = self.stop.clone();
        self.running.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// Starts a task that ends by itself when its token is cancelled.
    pub(crate) fn spawn_stoppable<F>(&mut self, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.running.spawn(task(self.stop.clone()));
    }

    /// Stops all tasks, and waits until they have ended.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while self.running.join_next().await.is_some() {}
    }
}
