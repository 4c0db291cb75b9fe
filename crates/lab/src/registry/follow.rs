//! Watches that never end.

use futures::stream::{self, BoxStream, StreamExt};

use super::{ObjectSelection, ObjectWatch, Registry, Resource, WatchEvent, WatchFrom};

/// A watch event with its resource.
pub(crate) type ObservedEvent = (Resource, WatchEvent);

/// Watches all objects of several resources forever, starting with those that already exist. A watch that falls behind
/// the history restarts with the objects that exist at that time.
pub(crate) fn follow(registry: &Registry, resources: &[Resource]) -> BoxStream<'static, ObservedEvent> {
    let feeds = resources.iter().map(|&resource| {
        let start = (registry.clone(), None::<ObjectWatch>);
        stream::unfold(start, move |(registry, mut watch)| async move {
            loop {
                let following = match watch.take() {
                    Some(watch) => Ok(watch),
                    None => registry.watch(resource, None, ObjectSelection::all(), WatchFrom::Existing),
                };
                if let Ok(mut following) = following
                    && let Ok(event) = following.next().await
                {
                    return Some(((resource, event), (registry, Some(following))));
                }
            }
        })
        .boxed()
    });
    stream::select_all(feeds).boxed()
}
