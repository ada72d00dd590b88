//! Stacking zero: no two runnable siblings of a VM are on one CPU for any time, if each may use the
//! same CPUs and there are enough of them for all.

use super::Checker;
use super::picture::{Picture, TaskLife};

/// The checker.
#[derive(Clone, Debug, Default)]
pub struct Stacking {
    /// VM and CPU of tasks that are runnable, to sort; kept so that nothing is allocated.
    places: Vec<(usize, usize)>,
    /// VMs whose siblings can be apart.
    able: Vec<bool>,
}

impl Stacking {
    /// VMs of which all tasks may use the same CPUs, no fewer than tasks.
    fn able(&mut self, picture: &Picture) {
        let vms = picture.tasks.iter().map(|task| task.vm + 1).max().unwrap_or(0);
        self.able = (0..vms)
            .map(|vm| {
                let own = || picture.tasks.iter().filter(|task| task.vm == vm);
                let Some(first) = own().next() else { return false };
                first.allowed.count() as usize >= own().count()
                    && own().all(|task| task.allowed == first.allowed)
            })
            .collect();
    }
}

impl Checker for Stacking {
    fn name(&self) -> &'static str {
        "apart"
    }

    fn fact(&mut self, _picture: &Picture, fact: &super::Fact) -> Option<String> {
        if matches!(fact.what, super::FactKind::Allowed { .. }) {
            self.able.clear();
        }
        None
    }

    fn span(&mut self, picture: &Picture, _to: u64) -> Option<String> {
        if self.able.is_empty() {
            self.able(picture);
        }
        let able = &self.able;
        let runnable =
            picture.tasks.iter().filter(|task| task.life != TaskLife::Blocked && able[task.vm]);
        self.places.clear();
        self.places.extend(runnable.map(|task| (task.vm, task.cpu)));
        self.places.sort_unstable();
        let pair = self.places.windows(2).find(|pair| pair[0] == pair[1])?;
        Some(format!("two runnable siblings of VM {} are on CPU {}", pair[0].0, pair[0].1))
    }
}
