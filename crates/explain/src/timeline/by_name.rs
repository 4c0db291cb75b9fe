//! Finds data by the address of a name in memory.
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

/// Value for each name, for names that many rows in a row share, such as the source of a file's rows.
#[derive(Debug)]
pub(crate) struct ValuesByRun<V> {
    values: Vec<(Arc<str>, V)>,
    /// Index of each name's value.
    places: HashMap<Arc<str>, usize>,
    /// Index of the value used last.
    last: usize,
}

impl<V> Default for ValuesByRun<V> {
    fn default() -> Self {
        Self { values: Vec::new(), places: HashMap::default(), last: 0 }
    }
}

impl<V: Default> ValuesByRun<V> {
    /// Returns the value for a name, creating a default one as needed.
    pub(crate) fn get(&mut self, name: &Arc<str>) -> &mut V {
        if self.values.get(self.last).is_none_or(|(last, _)| !Arc::ptr_eq(last, name)) {
            self.last = self.places.get(name).copied().unwrap_or_else(|| self.add(name));
        }
        &mut self.values[self.last].1
    }

    fn add(&mut self, name: &Arc<str>) -> usize {
        let place = self.values.len();
        self.values.push((Arc::clone(name), V::default()));
        self.places.insert(Arc::clone(name), place);
        place
    }
}

impl<V> ValuesByRun<V> {
    /// Returns the value for a name that has one.
    pub(crate) fn find(&self, name: &str) -> Option<&V> {
        self.places.get(name).map(|place| &self.values[*place].1)
    }

    /// Returns all names with their values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &V)> {
        self.values.iter().map(|(name, value)| (name, value))
    }
}

impl<V> IntoIterator for ValuesByRun<V> {
    type Item = (Arc<str>, V);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.into_iter()
    }
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

    #[test]
    fn interrupted_runs_share_value() {
        let [web, same, other]: [Arc<str>; 3] = ["web".into(), "web".into(), "other".into()];
        let mut counts = ValuesByRun::<u64>::default();
        for name in [&web, &web, &other, &other, &same, &web] {
            *counts.get(name) += 1;
        }
        assert_eq!(counts.find("web"), Some(&4));
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(web, 4), (other, 2)]);
    }
}
