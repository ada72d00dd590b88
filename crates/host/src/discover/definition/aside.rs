//! Work that may never end, on a thread of its own: `/etc/pve` of Proxmox is a file system that a process
//! (pmxcfs) answers for. A read waits for as long as that process does not answer, and a scan must not.
//!
//! ```text
//! idle --work--> busy --done within the time that is left--> idle
//!                 | not done
//!                 +--> late: no other work is begun --done at last--> idle
//! ```

use crate::discover::files::Reader;
use crate::root::Root;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

type Work = Box<dyn FnOnce(&mut Reader) + Send>;

/// A thread that does such work, one piece at a time.
#[derive(Debug, Default)]
pub(in crate::discover) struct Aside {
    thread: Option<Thread>,
    /// Whether the last work has not ended in time, nor since.
    is_late: bool,
    /// How much of this scan may still be spent on waiting.
    left: Duration,
    /// Whether work was left undone in this scan, and in the one before.
    pub(in crate::discover) left_undone: [bool; 2],
}

#[derive(Debug)]
struct Thread {
    works: Sender<Work>,
    /// One message for each work that has ended.
    ended: Receiver<()>,
}

impl Thread {
    /// It ends when this is dropped and its work is done.
    fn start(root: Root) -> io::Result<Self> {
        let (works, todo) = channel::<Work>();
        let (tell, ended) = channel();
        Builder::new().name("definitions".to_owned()).spawn(move || {
            let mut reader = Reader::new(&root);
            for work in todo {
                work(&mut reader);
                if tell.send(()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { works, ended })
    }
}

impl Aside {
    /// A scan begins, which may wait for so long.
    pub(in crate::discover) fn begin(&mut self, budget: Duration) {
        self.left = budget;
        self.left_undone = [false, self.left_undone[0]];
    }

    /// What is to be said where work was left undone in this scan and not in the one before.
    pub(in crate::discover) fn warning(&self) -> Option<String> {
        (self.left_undone == [true, false]).then(|| {
            "/etc/pve does not answer (does pmxcfs of Proxmox run?): settings in the tags of VMs \
             stay as they were last known"
                .to_owned()
        })
    }

    /// What comes of the work; `None` where it does not end within the time that is left of this scan, or
    /// earlier work has not ended yet.
    pub(super) fn run<T: Send + 'static>(
        &mut self,
        root: &Root,
        work: impl FnOnce(&mut Reader) -> T + Send + 'static,
    ) -> Option<T> {
        let done = self.try_run(root, work);
        self.left_undone[0] |= done.is_none();
        done
    }

    fn try_run<T: Send + 'static>(
        &mut self,
        root: &Root,
        work: impl FnOnce(&mut Reader) -> T + Send + 'static,
    ) -> Option<T> {
        if self.is_late {
            self.is_late = self.thread.as_ref()?.ended.try_recv().is_err();
        }
        if self.is_late || self.left.is_zero() {
            return None;
        }
        if self.thread.is_none() {
            self.thread = Thread::start(root.clone()).ok();
        }
        let thread = self.thread.as_ref()?;
        let (answer, answered) = channel();
        let begun = Instant::now();
        let work = move |reader: &mut Reader| _ = answer.send(work(reader));
        thread.works.send(Box::new(work)).ok()?;
        self.is_late = thread.ended.recv_timeout(self.left).is_err();
        self.left = self.left.saturating_sub(begun.elapsed());
        answered.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_millis(50);

    #[test]
    fn work_that_does_not_end_is_waited_for_once() {
        let (mut aside, root) = (Aside::default(), Root::live());
        let (end, wait) = channel::<()>();
        aside.begin(Duration::from_secs(60));
        assert_eq!(aside.run(&root, |_| 1), Some(1));
        aside.begin(BUDGET);
        let begun = Instant::now();
        assert_eq!(aside.run(&root, move |_| wait.recv().is_err()), None);
        assert!(begun.elapsed() >= BUDGET && aside.warning().is_some());
        aside.begin(Duration::from_secs(60));
        let begun = Instant::now();
        (0..1000).for_each(|_| assert_eq!(aside.run(&root, |_| 2), None));
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for it again");
        assert_eq!(aside.warning(), None, "told once");
        drop(end);
        while aside.run(&root, |_| 3) != Some(3) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it has ended, and work goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn scan_waits_no_longer_than_its_budget() {
        let (mut aside, root) = (Aside::default(), Root::live());
        aside.begin(BUDGET);
        let slow = |_: &mut Reader| std::thread::sleep(BUDGET / 4);
        let done = (0..100).filter(|_| aside.run(&root, slow).is_some()).count();
        assert!(done < 5, "{done}");
        aside.begin(Duration::from_secs(60));
        std::thread::sleep(BUDGET);
        assert_eq!(aside.run(&root, slow), Some(()));
    }
}
