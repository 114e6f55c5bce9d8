"""The definitions of the messages in a flight log, by "package/Type": ROS 2's own, and those of this project."""

from __future__ import annotations

XYZ = "float64 x\nfloat64 y\nfloat64 z"
STAMPED = "std_msgs/Header header"

DEFINITIONS = {
    "builtin_interfaces/Time": "int32 sec\nuint32 nanosec",
    "std_msgs/Header": "builtin_interfaces/Time stamp\nstring frame_id",
    "sim2metal_msgs/Event": "builtin_interfaces/Time stamp\nstring kind\nstring text\nstring who",
    "geometry_msgs/Vector3": XYZ,
    "geometry_msgs/Point": XYZ,
    "geometry_msgs/Quaternion": "float64 x 0\nfloat64 y 0\nfloat64 z 0\nfloat64 w 1",
    "geometry_msgs/Pose": "Point position\nQuaternion orientation",
    "geometry_msgs/Twist": "Vector3 linear\nVector3 angular",
    "geometry_msgs/PoseWithCovariance": "Pose pose\nfloat64[36] covariance",
    "geometry_msgs/TwistWithCovariance": "Twist twist\nfloat64[36] covariance",
    "geometry_msgs/PoseStamped": f"{STAMPED}\nPose pose",
    "geometry_msgs/Transform": "Vector3 translation\nQuaternion rotation",
    "geometry_msgs/TransformStamped": f"{STAMPED}\nstring child_frame_id\nTransform transform",
    "tf2_msgs/TFMessage": "geometry_msgs/TransformStamped[] transforms",
    "nav_msgs/Odometry": (
        f"{STAMPED}\nstring child_frame_id\n"
        "geometry_msgs/PoseWithCovariance pose\ngeometry_msgs/TwistWithCovariance twist"
    ),
    "sensor_msgs/JointState": f"{STAMPED}\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort",
    "std_msgs/Float64MultiArray": "MultiArrayLayout layout\nfloat64[] data",
    "std_msgs/MultiArrayLayout": "MultiArrayDimension[] dim\nuint32 data_offset",
    "std_msgs/MultiArrayDimension": "string label\nuint32 size\nuint32 stride",
    "diagnostic_msgs/DiagnosticArray": f"{STAMPED}\nDiagnosticStatus[] status",
    "diagnostic_msgs/DiagnosticStatus": (
        "byte OK=0\nbyte WARN=1\nbyte ERROR=2\nbyte STALE=3\n"
        "byte level\nstring name\nstring message\nstring hardware_id\nKeyValue[] values"
    ),
    "diagnostic_msgs/KeyValue": "string key\nstring value",
}
