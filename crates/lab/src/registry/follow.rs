//! Watches that never end.

use futures::stream::{self, BoxStream, StreamExt};

use super::{Registry, Resource, Selection, Watch, WatchEvent, WatchFrom};

/// A watch event with its resource.
pub(crate) type Observed = (Resource, WatchEvent);

/// Watches all objects of several resources forever, starting with those that already exist. A watch that falls behind
/// the history restarts with the objects that exist at that time.
pub(crate) fn follow(registry: &Registry, resources: &[Resource]) -> BoxStream<'static, Observed> {
    let feeds = resources.iter().map(|&resource| {
        let start = (registry.clone(), None::<Watch>);
        stream::unfold(start, move |(registry, mut watch)| async move {
            loop {
                let following = match watch.take() {
                    Some(watch) => Ok(watch),
                    None => registry.watch(resource, None, Selection::all(), WatchFrom::Existing),
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
