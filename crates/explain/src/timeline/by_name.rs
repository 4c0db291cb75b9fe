//! Finds data about a pod by the address of its name in memory.
//!
//! The rows read by one lane share their strings, so a known name need not be compared. Comparing names takes a large
//! part of the time needed to read ten million rows.

use std::sync::Arc;

use foldhash::HashMap;

/// Value for each name seen. A name stored at two addresses has two values.
#[derive(Debug)]
pub(crate) struct ValuesByName<V>(HashMap<usize, (Arc<str>, V)>);

impl<V> Default for ValuesByName<V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<V> ValuesByName<V> {
    /// Returns the value for a name, which is `first()` when the name is seen for the first time.
    pub(crate) fn get(&mut self, name: &Arc<str>, first: impl FnOnce() -> V) -> &mut V {
        // The name is kept alive, so its address is not reused.
        let new = || (Arc::clone(name), first());
        &mut self.0.entry(place(name)).or_insert_with(new).1
    }

    pub(crate) fn has(&self, name: &Arc<str>) -> bool {
        self.0.contains_key(&place(name))
    }
}

fn place(name: &Arc<str>) -> usize {
    Arc::as_ptr(name).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_by_pointer() {
        let [web, same, other]: [Arc<str>; 3] = ["web".into(), "web".into(), "other".into()];
        let mut counts = ValuesByName::default();
        for name in [&web, &other, &Arc::clone(&web), &same] {
            *counts.get(name, || 0) += 1;
        }
        assert!(counts.has(&web) && !counts.has(&"web".into()));
        assert_eq!([&web, &same, &other].map(|name| *counts.get(name, || 0)), [2, 1, 1]);
    }
}
