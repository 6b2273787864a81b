//! The repository is tidy.

#[test]
fn the_repository_is_tidy() {
    let untidy = xtask::tidy::check(&xtask::workspace_root()).unwrap();
    assert!(untidy.files > 10);
    assert!(untidy.errors.is_empty(), "\n{}\n", untidy.errors.join("\n"));
}
