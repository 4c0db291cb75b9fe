use super::*;

#[test]
fn write_pictures() {
    let dir = std::path::Path::new("/tmp/fontw/out");
    for (name, analysis) in [
        ("naive", samples::naive_exit()),
        ("prestop", samples::prestop_sleep()),
        ("invalid", samples::invalid()),
        ("partial", samples::partial()),
        ("quiet", samples::quiet()),
        ("rollout", samples::rollout()),
        ("ten", samples::ten_thousand()),
    ] {
        for file in all(&analysis).unwrap() {
            let path = dir.join(name).join(&file.path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file.bytes).unwrap();
        }
        std::fs::write(
            dir.join(name).join("out.txt"),
            text(&analysis, &TextOptions { files: Some("runs/x".into()), ..Default::default() }),
        )
        .unwrap();
    }
}
