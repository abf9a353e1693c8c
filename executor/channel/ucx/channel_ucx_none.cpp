#include "costmodel/errors.h"
#include "executor/channel/ucx/channel_ucx.h"

namespace stagecraft::channel {

std::string why_no_ucx() { return "this build has no UCX: configure with -DSTAGECRAFT_WITH_UCX=ON"; }

std::string ucx_version() { return "without UCX"; }

std::unique_ptr<Channel> make_ucx_channel(const meeting::LaunchInfo&, std::chrono::milliseconds,
                                          std::shared_ptr<Activity>, const std::string&) {
  throw DeviceError(ErrorKind::NotInBuild, why_no_ucx() + ", or use --channel gloo");
}

}  // namespace stagecraft::channel
