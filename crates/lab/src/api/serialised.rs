//! Serialised JSON of objects, shared by all watchers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::Value;

use super::super::sync::lock;

/// JSON of the objects last sent to watchers. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Serialised {
    recent: Arc<Mutex<Recent>>,
}

#[derive(Debug, Default)]
struct Recent {
    /// JSON by the object's address. No other object has that address while the object is kept here.
    texts: HashMap<usize, (Arc<Value>, Bytes)>,
    order: VecDeque<usize>,
}

impl Serialised {
    /// Number of objects to keep. Watchers that keep up are fewer events apart than that.
    const KEPT: usize = 256;

    pub(super) fn of(&self, object: &Arc<Value>) -> Bytes {
        let address = Arc::as_ptr(object).addr();
        if let Some((_, text)) = lock(&self.recent).texts.get(&address) {
            return text.clone();
        }
        let text = Bytes::from(object.to_string());
        let mut recent = lock(&self.recent);
        if recent.order.len() == Self::KEPT
            && let Some(oldest) = recent.order.pop_front()
        {
            recent.texts.remove(&oldest);
        }
        // Another watcher may have come first.
        if recent.texts.insert(address, (Arc::clone(object), text.clone())).is_none() {
            recent.order.push_back(address);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cache_serialises_once_and_evicts_oldest() {
        let serialised = Serialised::default();
        let objects: Vec<_> = (0..Serialised::KEPT + 1).map(|n| Arc::new(json!({"n": n}))).collect();
        let first = serialised.of(&objects[0]);
        assert_eq!(first, "{\"n\":0}");
        assert_eq!(serialised.of(&objects[0]).as_ptr(), first.as_ptr());
        for object in &objects[1..] {
            serialised.of(object);
        }
        assert_eq!(lock(&serialised.recent).texts.len(), Serialised::KEPT);
        assert_ne!(serialised.of(&objects[0]).as_ptr(), first.as_ptr());
    }
}
