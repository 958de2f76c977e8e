//! Heads: how long.

use super::{connect, head, limited};

#[tokio::test]
async fn a_head_may_be_as_long_as_it_is_configured_and_no_longer() {
    for (lines, fits, too_long) in [("", 50, 65), (r#"header_bytes_max = "8KiB""#, 7, 9)] {
        let (scene, tenure) = limited(lines).await;
        for (kibibytes, expected) in [(fits, 200), (too_long, 431)] {
            let field = format!("Content-Length: 0\r\nX: {}\r\n", "x".repeat(kibibytes << 10));
            let mut client = connect(&scene).await;
            client.send(head("POST", "/", &tenure, &field)).await.unwrap();
            let answer = client.final_response().await.unwrap();
            assert_eq!(answer.status, expected, "{lines:?}, {kibibytes} KiB");
        }
        scene.finish().await;
    }
}
