#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "serve/metrics.h"
#include "serve/service.h"

namespace bm::serve {
namespace {

TEST(Service, AddressesAreNumbers) {
  EXPECT_EQ(parse_address("127.0.0.1:8080")->port, 8080);
  EXPECT_EQ(parse_address("[::1]:0")->host, "::1");
  for (const char* bad :
       {"", "8080", "127.0.0.1", "::1:80", ":80", "a:", "a:65536", "a:-1", "a:8x"})
    EXPECT_FALSE(parse_address(bad)) << bad;
  EXPECT_FALSE(open_listener({"example.com", 0}));  // no names are looked up
}

TEST(Service, AListenerSaysWhoReachesIt) {
  const auto own = open_listener({"127.0.0.1", 0});
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_TRUE(own->is_loopback);
  EXPECT_TRUE(own->url.starts_with("http://127.0.0.1:"));
  const auto any = open_listener({"0.0.0.0", 0});
  ASSERT_TRUE(any);
  EXPECT_FALSE(any->is_loopback);
  ::close(own->fd);
  ::close(any->fd);
}

TEST(Service, OriginsAreWrittenAsBrowsersSendThem) {
  for (const char* good :
       {"*", "https://chat.example.org", "http://localhost:3000", "http://127.0.0.1:8080",
        "http://[::1]:5173", "http://[::1]", "chrome-extension://abcdefgh", "https://a_b.example"})
    EXPECT_TRUE(check_origins({good})) << good;
  EXPECT_TRUE(check_origins({}));
  EXPECT_TRUE(check_origins({"http://a", "http://b"}));
  for (const char* bad : {"",
                          "null",
                          "localhost:3000",
                          "chat.example.org",
                          "https://",
                          "https://a/",
                          "https://a/b",
                          "https://a?b",
                          "https://u@a",
                          "HTTPS://a",
                          "https://A",
                          "https://a:",
                          "https://a:0",
                          "https://a:08",
                          "https://a:65536",
                          "https://a:443",
                          "http://a:80",
                          "https://*.a",
                          "://a",
                          "1a://b",
                          "http://[::1",
                          "http://a b",
                          "http://a\r\nX: y"})
    EXPECT_FALSE(check_origins({bad})) << bad;
  EXPECT_FALSE(check_origins({"*", "http://a"}));
}

TEST(Service, SecretsAreEqualOnlyWhole) {
  EXPECT_TRUE(equals_secret("secret", "secret"));
  for (const char* wrong : {"", "s", "secre", "secrets", "Secret", "secretsecret"})
    EXPECT_FALSE(equals_secret(wrong, "secret")) << wrong;
}

TEST(Service, AKeyFileIsItsOwnersAlone) {
  char path[] = "/tmp/bm_key_XXXXXX";
  ::close(::mkstemp(path));
  std::ofstream(path) << "sesame \nmore\n";
  EXPECT_EQ(*read_api_key(path), "sesame");
  ::chmod(path, 0640);
  EXPECT_EQ(read_api_key(path).error().code, Code::kPermission);
  ::chmod(path, 0600);
  std::ofstream(path) << "\n";
  EXPECT_FALSE(read_api_key(path));
  ::unlink(path);
  EXPECT_FALSE(read_api_key(path));
}

TEST(Metrics, HistogramsCountUpToTheirBounds) {
  const double bounds[] = {1, 2};
  Histogram h(bounds);
  for (const double v : {0.5, 1.0, 1.5, 9.0}) h.observe(v);
  std::string out;
  h.print(out, "x", "m=\"a\"");
  EXPECT_EQ(out,
            "x_bucket{m=\"a\",le=\"1\"} 2\nx_bucket{m=\"a\",le=\"2\"} 3\n"
            "x_bucket{m=\"a\",le=\"+Inf\"} 4\nx_sum{m=\"a\"} 12\nx_count{m=\"a\"} 4\n");
  EXPECT_EQ(escape_label("a\"b\\c\n"), "a\\\"b\\\\c\\n");
}

}  // namespace
}  // namespace bm::serve
