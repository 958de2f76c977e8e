//! Whether the threads of a process make progress.

use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};

/// The threads that are asked whether they make progress. Clones ask the same.
#[derive(Debug, Clone, Default)]
pub struct ThreadLiveness(Arc<Mutex<Vec<Asked>>>);

/// A thread that answers as long as it gets to do so.
#[derive(Debug, Clone)]
struct Asked {
    thread: String,
    questions: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

impl ThreadLiveness {
    /// Answers on the present thread, which runs local tasks, until it ends.
    pub fn answer_here(&self, thread: &str) {
        let (questions, mut asked) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        self.asked().push(Asked { thread: thread.to_owned(), questions });
        tokio::task::spawn_local(async move {
            while let Some(answer) = asked.recv().await {
                let _ = answer.send(()); // Who asked may have lost patience.
            }
        });
    }

    /// Completes when every thread has answered. Skips threads that have ended, because whatever
    /// started them sees their end.
    ///
    /// # Cancel safety
    /// Nothing is lost. A thread that hangs keeps one more unanswered question for as long as it
    /// hangs.
    pub async fn all_answer(&self) {
        let asked = {
            let mut asked = self.asked();
            asked.retain(|thread| !thread.questions.is_closed());
            asked.clone()
        };
        join_all(asked.iter().map(Asked::answers)).await;
    }

    /// The names of those who are asked.
    pub fn threads(&self) -> Vec<String> {
        self.asked().iter().map(|asked| asked.thread.clone()).collect()
    }

    fn asked(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.0.lock().expect("nothing panics while it looks at the threads")
    }
}

impl Asked {
    async fn answers(&self) {
        let (answer, answered) = oneshot::channel();
        if self.questions.send(answer).is_ok() {
            let _ = answered.await; // An error means that the thread has ended meanwhile.
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use tokio::task::LocalSet;
    use tokio::time::timeout;

    use super::*;

    /// A worker thread that hangs as soon as it is told to, until it is let go on.
    fn thread(
        pulses: &ThreadLiveness,
        hang: Receiver<()>,
        hangs: Sender<()>,
    ) -> oneshot::Sender<()> {
        let (end, ended) = oneshot::channel::<()>();
        let (pulses, (started, starts)) = (pulses.clone(), channel());
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, async move {
                pulses.answer_here("worker");
                started.send(()).unwrap();
                let mut poll = tokio::time::interval(Duration::from_millis(1));
                let hanging = async {
                    loop {
                        poll.tick().await;
                        if hang.try_recv().is_ok() {
                            hangs.send(()).unwrap();
                            hang.recv().unwrap();
                        }
                    }
                };
                tokio::select! {
                    _ = ended => {}
                    () = hanging => {}
                }
            });
        });
        starts.recv().unwrap();
        end
    }

    #[tokio::test]
    async fn a_thread_that_hangs_does_not_answer_and_one_that_has_ended_is_asked_no_more() {
        let pulses = ThreadLiveness::default();
        let ((hang, to_hang), (tell_hanging, is_hanging)) = (channel(), channel());
        let end = thread(&pulses, to_hang, tell_hanging);
        pulses.all_answer().await;

        hang.send(()).unwrap();
        is_hanging.recv().unwrap();
        assert!(timeout(Duration::from_millis(50), pulses.all_answer()).await.is_err());
        hang.send(()).unwrap();
        pulses.all_answer().await;

        assert_eq!(pulses.threads(), ["worker"]);
        end.send(()).unwrap();
        while !pulses.threads().is_empty() {
            pulses.all_answer().await;
        }
    }
}
